#include "kernels/cuda/library_search.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_split.h"
#include "runtime/base/text.h"

namespace holdfast::kernels::cuda {
namespace {

namespace fs = std::filesystem;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Existing paths that a pattern stands for, the highest version first.
std::vector<std::string> Matches(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::reverse(paths.begin(), paths.end());
  return paths;
}

class FolderList {
 public:
  void Add(const std::string& path, const char* origin, bool must_exist) {
    std::error_code ignored;
    if (path.empty() || (must_exist && !fs::is_directory(path, ignored))) return;
    const bool known =
        std::any_of(folders_.begin(), folders_.end(),
                    [&](const LibraryFolder& folder) { return folder.path == path; });
    if (!known) folders_.push_back({path, origin});
  }
  std::vector<LibraryFolder> Take() { return std::move(folders_); }

 private:
  std::vector<LibraryFolder> folders_;
};

std::string PathOf(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name[0] == '\0')
    return otherwise;
  return map->l_name;
}

}  // namespace

LibraryEnvironment LibraryEnvironment::OfProcess() {
  LibraryEnvironment environment;
  environment.library_path = Variable("LD_LIBRARY_PATH");
#ifdef HOLDFAST_CUDA_TOOLKIT
  environment.toolkits.push_back(HOLDFAST_CUDA_TOOLKIT);
#endif
  environment.toolkits.push_back("/usr/local/cuda");
  for (std::string& folder : Matches("/usr/local/cuda-*"))
    environment.toolkits.push_back(std::move(folder));
  for (const char* prefix : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string folder = Variable(prefix);
    if (!folder.empty())
      environment.python_folders.push_back(folder + "/lib/python3*/site-packages");
  }
  const std::string home = Variable("HOME");
  if (!home.empty())
    environment.python_folders.push_back(home + "/.local/lib/python3*/site-packages");
  for (const char* pattern :
       {"/usr/local/lib/python3*/site-packages", "/usr/local/lib/python3*/dist-packages",
        "/usr/lib/python3*/site-packages", "/usr/lib/python3/dist-packages"})
    environment.python_folders.push_back(pattern);
  return environment;
}

std::vector<LibraryFolder> LibraryFolders(const CudaOptions& options,
                                          const LibraryEnvironment& environment) {
  FolderList list;
  for (const std::string& folder : options.library_folders) list.Add(folder, "--cuda-libs", false);
  const std::vector<std::string> path = absl::StrSplit(environment.library_path, ':');
  for (const std::string& folder : path) list.Add(folder, "LD_LIBRARY_PATH", true);
  for (const std::string& toolkit : environment.toolkits) {
    list.Add(toolkit + "/lib64", "toolkit", true);
    list.Add(toolkit + "/lib", "toolkit", true);
  }
  for (const std::string& pattern : environment.python_folders) {
    for (const std::string& folder : Matches(pattern + "/nvidia/*/lib"))
      list.Add(folder, "Python wheel", true);
  }
  return list.Take();
}

absl::StatusOr<void*> Library::Function(const char* symbol) const {
  void* function = dlsym(handle, symbol);
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        Cat(path, " has no function ", symbol, ": it is another version of ", name,
            " than this program was built for; name the folder of the right one with --cuda-libs"));
  }
  return function;
}

absl::StatusOr<Library> OpenLibrary(const LibraryRequest& request,
                                    const std::vector<LibraryFolder>& folders) {
  std::string looked, refused;
  const auto open = [&](const std::string& file) {
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) refused = Cat(refused, refused.empty() ? "" : "; ", dlerror());
    return handle;
  };
  for (const LibraryFolder& folder : folders) {
    looked = Cat(looked, folder.path, " (", folder.origin, "), ");
    const std::string file = Cat(folder.path, "/", request.file);
    if (access(file.c_str(), F_OK) != 0) continue;
    if (void* handle = open(file)) return Library{request.name, file, handle};
  }
  const bool was_there = !refused.empty();
  if (void* handle = open(request.file))
    return Library{request.name, PathOf(handle, request.file), handle};
  return absl::FailedPreconditionError(
      Cat(request.name, " (", request.file, ") ", was_there ? "does not open" : "was not found",
          ". Looked in: ", looked, "the system's loader. ", refused, ". Install ", request.install,
          ", or name the folder it is in with --cuda-libs"));
}

}  // namespace holdfast::kernels::cuda
