#include <cstdint>
namespace holdfast { extern const int module_rendezvous; const int module_rendezvous = 0; }
