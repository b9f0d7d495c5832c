// Carves one block of scratch into aligned arrays. A model lays out its activations once for each
// shape of a micro-batch and asks Pass::Workspace for one block: nothing is allocated in a step.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace holdfast {

// Counts bytes: Add() gives the offset of a new array.
class WorkspaceLayout {
 public:
  int64_t AddBytes(int64_t bytes) {
    const int64_t offset = total_;
    total_ += (bytes + kernels::kAlignment - 1) / kernels::kAlignment * kernels::kAlignment;
    return offset;
  }
  int64_t AddFloats(int64_t count) { return AddBytes(count * static_cast<int64_t>(sizeof(float))); }
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0;
};

// The array at an offset of a layout.
template <typename T>
T* At(void* base, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

}  // namespace holdfast
