#include "runtime/cli/main.h"
namespace holdfast {
int Main(int, char**, const Trainer&) { return 1; }
}
