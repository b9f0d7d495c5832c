#include <cstdint>
namespace holdfast { extern const int module_storage; const int module_storage = 0; }
