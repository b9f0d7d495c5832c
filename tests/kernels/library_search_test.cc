// The search for the libraries of CUDA, with a small library of the tests' own in their place.
#include "kernels/cuda/library_search.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::kernels::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LibrarySearch : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("holdfast-libraries-" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Folder(const std::string& name) {
    fs::create_directories(root_ / name);
    return (root_ / name).string();
  }
  std::string WithLibrary(const std::string& name) {
    const std::string folder = Folder(name);
    fs::copy_file(HOLDFAST_TEST_LIBRARY, folder + "/libsmall.so.7",
                  fs::copy_options::overwrite_existing);
    return folder;
  }
  static absl::StatusOr<Library> Open(const std::vector<LibraryFolder>& folders) {
    return OpenLibrary({"Small", "libsmall.so.7", "the package small"}, folders);
  }

  fs::path root_;
};

TEST_F(LibrarySearch, FoldersComeInTheDocumentedOrder) {
  LibraryEnvironment environment;
  environment.library_path = Folder("path") + "::" + (root_ / "not-there").string();
  Folder("toolkit/lib64");
  environment.toolkits = {(root_ / "toolkit").string(), (root_ / "no-toolkit").string()};
  Folder("env/lib/python3.11/site-packages/nvidia/nccl/lib");
  Folder("env/lib/python3.12/site-packages/nvidia/cu13/lib");
  environment.python_folders = {(root_ / "env/lib/python3*/site-packages").string()};
  const std::string named = (root_ / "named").string();  // kept, though it is not there
  const std::vector<LibraryFolder> folders =
      LibraryFolders({.library_folders = {named, Folder("path")}}, environment);
  std::vector<std::string> got;
  for (const LibraryFolder& folder : folders)
    got.push_back(folder.origin + " " + fs::relative(folder.path, root_).string());
  EXPECT_THAT(
      got, ::testing::ElementsAre("--cuda-libs named", "--cuda-libs path", "toolkit toolkit/lib64",
                                  "Python wheel env/lib/python3.12/site-packages/nvidia/cu13/lib",
                                  "Python wheel env/lib/python3.11/site-packages/nvidia/nccl/lib"));
}

TEST_F(LibrarySearch, TheFirstThatOpensIsTaken) {
  const std::string first = Folder("empty"), second = WithLibrary("second"),
                    third = WithLibrary("third");
  const auto library = Open({{first, "a"}, {second, "b"}, {third, "c"}});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->path, second + "/libsmall.so.7");
  const auto function = library->Function("HoldfastSmallVersion");
  ASSERT_TRUE(function.ok());
  EXPECT_EQ(reinterpret_cast<int (*)()>(*function)(), 7);
  const auto missing = library->Function("HoldfastSmallShrink");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.status().message()),
              ::testing::AllOf(HasSubstr(library->path), HasSubstr("HoldfastSmallShrink"),
                               HasSubstr("another version of Small")));
}

TEST_F(LibrarySearch, WhatIsMissingIsNamedWithEveryFolder) {
  const std::string one = Folder("one"), two = Folder("two");
  const auto library = Open({{one, "--cuda-libs"}, {two, "toolkit"}});
  EXPECT_EQ(library.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(library.status().message()),
              ::testing::AllOf(HasSubstr("Small (libsmall.so.7) was not found"),
                               HasSubstr(one + " (--cuda-libs)"), HasSubstr(two + " (toolkit)"),
                               HasSubstr("Install the package small"), HasSubstr("--cuda-libs")));
}

TEST_F(LibrarySearch, AFileThatDoesNotOpenSaysWhy) {
  const std::string broken = Folder("broken");
  std::ofstream(broken + "/libsmall.so.7") << "this is no library, but long enough to look like a "
                                              "file that somebody damaged on the way here";
  const auto library = Open({{broken, "--cuda-libs"}});
  EXPECT_THAT(std::string(library.status().message()),
              ::testing::AllOf(HasSubstr("does not open"), HasSubstr("invalid ELF header")));
  // A good one behind it is taken.
  EXPECT_TRUE(Open({{broken, "a"}, {WithLibrary("good"), "b"}}).ok());
}

}  // namespace
}  // namespace holdfast::kernels::cuda
