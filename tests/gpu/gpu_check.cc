// gpu_check PART --rows FILE: one part of the GPU check; see check.sh, which runs all of them.
#include "tests/gpu/gpu_check.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "absl/strings/str_split.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"
#include "runtime/collectives/nccl/nccl.h"

namespace holdfast {
namespace {

namespace fs = std::filesystem;

// What is here: the device, and the libraries that are used beside it.
absl::Status DescribeDevice(GpuCheck& check) {
  check.rows->Ok("the GPU and cuBLASLt", check.device->Name());
  NcclOptions options;
  options.device = check.device;
  options.libraries = check.libraries;
  const auto factory = NcclFactory::Create(options);
  check.rows->Judge("NCCL", factory.status(), factory.ok() ? (*factory)->Version() : "");
  return absl::OkStatus();
}

using Part = absl::Status (*)(GpuCheck&);
const std::map<std::string, Part>& Parts() {
  static const std::map<std::string, Part> parts = {
      {"device", DescribeDevice},
      {"bandwidth", CheckBandwidth},
      {"products", CheckProducts},
      {"attention", CheckAttention},
      {"training", CheckTraining},
      {"sums", CheckSums},
      {"probe", CheckProbe},
      {"nccl", CheckNccl},
      {"absent-peer", CheckAbsentPeer},
      {"resume", CheckResume},
      {"sanitized", TrainForSanitizer},
  };
  return parts;
}

int Usage(const std::string& why) {
  std::string names;
  for (const auto& [name, part] : Parts()) names += " " + name;
  std::fprintf(stderr,
               "gpu_check: %s\n"
               "usage: gpu_check PART [--rows FILE] [--tiny] [--cuda-libs FOLDER[:FOLDER]] "
               "[--program HOLDFAST]\nparts:%s\n",
               why.c_str(), names.c_str());
  return 2;
}

struct Arguments {
  std::string part, rows, program, cuda_libs, error;
  bool tiny = false;
};

Arguments Parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::map<std::string, std::string*> values = {
        {"--rows", &a.rows}, {"--program", &a.program}, {"--cuda-libs", &a.cuda_libs}};
    if (word == "--tiny") {
      a.tiny = true;
    } else if (const auto value = values.find(word); value != values.end()) {
      if (++i == argc) {
        a.error = word + " needs a value";
        return a;
      }
      *value->second = argv[i];
    } else if (a.part.empty() && !word.starts_with("-")) {
      a.part = word;
    } else {
      a.error = "unknown argument " + word;
      return a;
    }
  }
  if (Parts().count(a.part) == 0) a.error = a.part.empty() ? "which part?" : "no part " + a.part;
  return a;
}

// A folder for files of this part; gone with it.
class Scratch {
 public:
  Scratch() : path_((fs::temp_directory_path() / "holdfast-gpu-check-XXXXXX").string()) {
    if (mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::exit(1);
  }
  ~Scratch() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::Status Run(const Arguments& arguments, GpuCheck& check) {
  if (arguments.part != "resume") {  // the program's workers have the device for themselves
    check.rows->Begin("opening the device");
    const auto device = kernels::FindCudaBackend().Open(check.libraries, 0);
    if (!device.ok()) return device.status();
    check.device = *device;
  }
  return Parts().at(arguments.part)(check);
}

}  // namespace

int GpuCheckMain(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  if (!arguments.error.empty()) return Usage(arguments.error);
  CheckRows rows(arguments.rows, arguments.tiny);
  const Scratch scratch;
  GpuCheck check;
  check.libraries.library_folders = absl::StrSplit(arguments.cuda_libs, ':', absl::SkipEmpty());
  check.cuda_libs = arguments.cuda_libs;
  if (arguments.tiny) check.shapes = GpuShapes::Tiny();
  check.rows = &rows;
  check.scratch = scratch.path();
  const fs::path self = fs::read_symlink("/proc/self/exe");
  check.program = arguments.program.empty() ? (self.parent_path() / "holdfast").string()
                                            : fs::absolute(arguments.program).string();
  const absl::Status status = Run(arguments, check);
  if (!status.ok()) rows.Fail(Cat(arguments.part, ": ended early"), StdView(status.message()));
  return rows.failed() ? 1 : 0;
}

}  // namespace holdfast
