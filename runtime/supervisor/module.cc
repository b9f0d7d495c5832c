#include <cstdint>
namespace holdfast { extern const int module_supervisor; const int module_supervisor = 0; }
