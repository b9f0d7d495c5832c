#include <omp.h>
#include <xmmintrin.h>

#include "kernels/device.h"

namespace holdfast::kernels {

void SetComputeThread() {
  // All exceptions masked, round to nearest, no flush to zero, subnormals read as they are. A
  // library built with -ffast-math may have changed this when it was loaded.
  _mm_setcsr(0x1f80);
  // oneDNN splits a product by the calling thread's OpenMP setting, and its bits depend on the
  // split. The setting is per thread: a call in main() does not reach another thread.
  omp_set_dynamic(0);
  omp_set_num_threads(1);
}

}  // namespace holdfast::kernels
