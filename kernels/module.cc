#include <cstdint>
namespace holdfast { extern const int module_kernels; const int module_kernels = 0; }
