// A curve over a whole run in bounded memory: means over equal stretches of steps. When there are
// too many stretches, each takes in its neighbour. The same values give the same curve, whenever
// they came. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace holdfast::view {

struct Point {
  int64_t step = 0;
  double value = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

class Series {
 public:
  explicit Series(size_t points_max) : points_max_(points_max < 2 ? 2 : points_max) {}
  // Steps that do not follow the last one (computed again after a restore) and values that are not
  // finite are left out.
  void Add(int64_t step, double value);
  // Steps after `step` are not part of the run any more. A stretch that reaches beyond goes whole.
  void CutAfter(int64_t step);
  // At most points_max, ascending; each at the last step of its stretch.
  std::vector<Point> Points() const;
  int64_t last_step() const { return last_step_; }

 private:
  struct Stretch {
    int64_t index, last_step;
    double sum;
    int64_t count;
  };
  const size_t points_max_;
  int64_t steps_each_ = 1, last_step_ = -1;
  std::vector<Stretch> stretches_;
};

}  // namespace holdfast::view
