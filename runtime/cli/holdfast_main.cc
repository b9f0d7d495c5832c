#include "runtime/cli/main.h"

int main(int argc, char** argv) { return holdfast::Main(argc, argv, holdfast::BuiltInTrainer()); }
