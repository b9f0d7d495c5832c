// The supervisor with another program as its worker: supervisor_driver CONFIG.toml WORKER.
#include <cstdio>

#include "rendezvous/membership.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/supervisor.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto text = holdfast::ReadSmallFile(argv[1]);
  const auto config = holdfast::ConfigFromToml(text.ok() ? *text : "", argv[1]);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return 2;
  }
  holdfast::SupervisorOptions options;
  options.program = argv[2];
  options.connect = holdfast::rendezvous::Observer::Connect;
  return static_cast<int>(holdfast::RunSupervisor(*config, options));
}
