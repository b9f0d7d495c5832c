// The whole program for a trainer: `holdfast run`, worker, tools. A user's own program is
//   int main(int argc, char** argv) { return holdfast::Main(argc, argv, MyTrainer()); }
// Must be the first call in main(): the supervisor starts argv[0] again as the worker.
#pragma once

#include "runtime/models/model.h"

namespace holdfast {

int Main(int argc, char** argv, const Trainer& trainer);

}  // namespace holdfast
