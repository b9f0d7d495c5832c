// A GPU, or the emulated one: what this program is linked with decides.
#include "tests/gpu/gpu_check.h"

int main(int argc, char** argv) { return holdfast::GpuCheckMain(argc, argv); }
