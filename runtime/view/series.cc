#include "runtime/view/series.h"

#include <algorithm>
#include <cmath>

namespace holdfast::view {

void Series::Add(int64_t step, double value) {
  if (step <= last_step_ || !std::isfinite(value)) return;
  last_step_ = step;
  const int64_t index = step / steps_each_;
  if (!stretches_.empty() && stretches_.back().index == index) {
    Stretch& s = stretches_.back();
    s.last_step = step;
    s.sum += value;
    ++s.count;
    return;
  }
  stretches_.push_back({index, step, value, 1});
  while (stretches_.size() > points_max_) {
    steps_each_ *= 2;
    std::vector<Stretch> merged;
    for (Stretch s : stretches_) {
      s.index /= 2;
      if (!merged.empty() && merged.back().index == s.index) {
        merged.back().last_step = s.last_step;
        merged.back().sum += s.sum;
        merged.back().count += s.count;
      } else {
        merged.push_back(s);
      }
    }
    stretches_ = std::move(merged);
  }
}

void Series::CutAfter(int64_t step) {
  while (!stretches_.empty() && stretches_.back().last_step > step) stretches_.pop_back();
  last_step_ = std::min(last_step_, step);
}

std::vector<Point> Series::Points() const {
  std::vector<Point> points;
  points.reserve(stretches_.size());
  for (const Stretch& s : stretches_)
    points.push_back({s.last_step, s.sum / static_cast<double>(s.count)});
  return points;
}

}  // namespace holdfast::view
