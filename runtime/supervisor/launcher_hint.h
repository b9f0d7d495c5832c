// Variables that other launchers (torchrun, mpirun, Slurm) put into the environment to number
// processes. Holdfast numbers its workers itself: whoever sets them should know that they are not
// read. Reads the environment; any thread while nobody changes it.
#pragma once

#include <string>

namespace holdfast {

// What is set, that it is ignored, and what to use instead; "" when nothing is set.
std::string LauncherHint();

}  // namespace holdfast
