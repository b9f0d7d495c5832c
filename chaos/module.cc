#include <cstdint>
namespace holdfast { extern const int module_chaos; const int module_chaos = 0; }
