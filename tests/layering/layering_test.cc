// Lint that needs no tool: who may include whom, which folders exist, how long a file may be, which
// words may not stay in the tree, and that README.md tells the exit codes as the header has them.
// Reads the source tree only.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/exit_code.h"
#include "runtime/base/text.h"

namespace holdfast {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileLinesMax = 600;
constexpr std::array<const char*, 6> kSourceFolders = {"runtime", "rendezvous", "storage",
                                                       "kernels", "chaos",      "tests"};

struct Source {
  std::string path;  // from the root, e.g. "kernels/device.h"
  std::vector<std::string> lines;
};

fs::path Root() { return HOLDFAST_SOURCE_DIR; }

std::vector<std::string> LinesOf(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

bool IsSource(const fs::path& path) {
  static const std::set<std::string> kinds = {".cc", ".h", ".cu", ".cuh"};
  return kinds.count(path.extension().string()) > 0;
}

const std::vector<Source>& Sources() {
  static const std::vector<Source> sources = [] {
    std::vector<Source> found;
    for (const char* folder : kSourceFolders) {
      for (const auto& entry : fs::recursive_directory_iterator(Root() / folder)) {
        if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
        found.push_back({fs::relative(entry.path(), Root()).string(), LinesOf(entry.path())});
      }
    }
    return found;
  }();
  return sources;
}

// base < kernels, storage, rendezvous < runtime < chaos < tests
std::string ModuleOf(const std::string& path) {
  if (path.starts_with("runtime/base/")) return "base";
  return path.substr(0, path.find('/'));
}

bool MayInclude(const std::string& from, const std::string& to) {
  if (from == to || to == "base") return true;
  if (from == "runtime") return to == "kernels" || to == "storage" || to == "rendezvous";
  if (from == "chaos") return to != "tests";
  return from == "tests";
}

// The file between the quotes of an #include "..." line, else "".
std::string QuotedInclude(const std::string& line) {
  std::string_view rest = line;
  const auto skip_blanks = [&rest] {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  };
  const auto take = [&rest](std::string_view word) {
    if (!rest.starts_with(word)) return false;
    rest.remove_prefix(word.size());
    return true;
  };
  skip_blanks();
  if (!take("#")) return "";
  skip_blanks();
  if (!take("include")) return "";
  skip_blanks();
  if (!take("\"")) return "";
  return std::string(rest.substr(0, rest.find('"')));
}

TEST(Layering, TheRuleItself) {
  EXPECT_TRUE(MayInclude("kernels", "base"));
  EXPECT_FALSE(MayInclude("kernels", "storage"));
  EXPECT_FALSE(MayInclude("storage", "rendezvous"));
  EXPECT_FALSE(MayInclude("rendezvous", "runtime"));
  EXPECT_FALSE(MayInclude("base", "kernels"));
  EXPECT_FALSE(MayInclude("runtime", "chaos"));
  EXPECT_FALSE(MayInclude("chaos", "tests"));
  EXPECT_TRUE(MayInclude("tests", "chaos"));
  EXPECT_EQ(QuotedInclude("#include \"runtime/base/text.h\"  // why"), "runtime/base/text.h");
  EXPECT_EQ(QuotedInclude("#include <vector>"), "");
}

TEST(Layering, IncludesPointLeft) {
  ASSERT_GT(Sources().size(), 20u);
  const std::set<std::string> folders(kSourceFolders.begin(), kSourceFolders.end());
  for (const Source& source : Sources()) {
    for (const std::string& line : source.lines) {
      const std::string included = QuotedInclude(line);
      if (included.empty() || folders.count(included.substr(0, included.find('/'))) == 0) continue;
      EXPECT_TRUE(fs::exists(Root() / included))
          << source.path << " includes " << included << ", which is not there";
      EXPECT_TRUE(MayInclude(ModuleOf(source.path), ModuleOf(included)))
          << source.path << " (" << ModuleOf(source.path) << ") may not include " << included;
    }
  }
}

// An include that is found beside the file and not from the root would escape the rule.
TEST(Layering, ProjectIncludesStartAtTheRoot) {
  for (const Source& source : Sources()) {
    for (const std::string& line : source.lines) {
      const std::string included = QuotedInclude(line);
      if (included.empty() || included.starts_with("absl/") || included.starts_with("nlohmann/"))
        continue;
      const fs::path beside = (Root() / source.path).parent_path() / included;
      EXPECT_FALSE(fs::exists(beside))
          << source.path << ": write the path of \"" << included << "\" from the root";
    }
  }
}

TEST(Layering, NoOtherSourceFolder) {
  const std::set<std::string> known(kSourceFolders.begin(), kSourceFolders.end());
  for (const auto& top : fs::directory_iterator(Root())) {
    const std::string name = top.path().filename().string();
    if (!top.is_directory() || name.starts_with(".") || name.starts_with("build") ||
        known.count(name) > 0)
      continue;
    for (const auto& entry : fs::recursive_directory_iterator(top.path())) {
      EXPECT_FALSE(IsSource(entry.path()))
          << entry.path() << ": sources belong into the known folders";
    }
  }
  for (const auto& top : fs::directory_iterator(Root())) {
    EXPECT_FALSE(top.is_regular_file() && IsSource(top.path()))
        << top.path() << ": no source file at the top";
  }
}

TEST(Layering, NoFileIsTooLong) {
  for (const Source& source : Sources())
    EXPECT_LE(source.lines.size(), kFileLinesMax) << source.path;
}

// As a word: the six X of mkdtemp's templates are no mark. One that ends in _ may go on.
bool HoldsMark(const std::string& line, const std::string& word) {
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  for (size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !letter(line[at - 1]);
    if (begins && (word.back() == '_' || end == line.size() || !letter(line[end]))) return true;
  }
  return false;
}

TEST(Layering, NoMarksOfUnfinishedWork) {
  // Put together here, so that this file does not hold them.
  const std::vector<std::string> banned = {
      std::string("TO") + "DO", std::string("FIX") + "ME",      std::string("XX") + "X",
      std::string("HA") + "CK", std::string("GTEST_") + "SKIP", std::string("DIS") + "ABLED_"};
  for (const Source& source : Sources()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      for (const std::string& word : banned) {
        EXPECT_FALSE(HoldsMark(source.lines[i], word))
            << source.path << ":" << i + 1 << " holds a mark of unfinished work";
      }
    }
  }
}

// The README's table of exit codes has a row "| 22 | ..." for every code, and for no other number.
TEST(Layering, ReadmeListsEveryExitCode) {
  const fs::path readme = Root() / "README.md";
  ASSERT_TRUE(fs::exists(readme)) << "README.md must list the exit codes";
  std::set<int> told;
  bool in_section = false;
  for (const std::string& line : LinesOf(readme)) {
    if (line.starts_with("#")) in_section = line.find("xit code") != std::string::npos;
    int code = -1;
    if (in_section && std::sscanf(line.c_str(), "| %d |", &code) == 1) told.insert(code);
  }
  std::set<int> known;
  for (int code = 0; code < 128; ++code) {
    if (std::string(ExitCodeText(static_cast<ExitCode>(code))) != "unknown") known.insert(code);
  }
  EXPECT_EQ(told, known) << "README.md, section \"Exit codes\", table rows \"| CODE | ...\", "
                            "against runtime/base/exit_code.h";
}

}  // namespace
}  // namespace holdfast
