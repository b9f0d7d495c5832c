#include "tests/collectives/nccl_members.h"

#include <sys/prctl.h>

#include <csignal>
#include <sstream>

#include "gtest/gtest.h"

namespace holdfast {

NcclWorld::NcclWorld(int members, const Options& options) {
  const std::string mode =
      "nccl " + std::to_string(options.build_ms) + " " + std::to_string(options.abort_ms);
  for (int m = 0; m < members; ++m) {
    members_.push_back(std::make_unique<MemberProcess>(m, members, mode, options.detect_ms));
  }
  for (auto& member : members_) {
    ports_.push_back(member->Hear(kReplyMs));
    EXPECT_NE(ports_.back(), "") << "a member did not start";
  }
}

void NcclWorld::SayBuild(const std::vector<int>& who) {
  ++generation_;
  std::string ports;
  for (const int member : who) ports += " " + ports_[static_cast<size_t>(member)];
  for (size_t rank = 0; rank < who.size(); ++rank) {
    Say(who[rank], "build " + std::to_string(generation_) + " " + std::to_string(rank) + ports);
  }
}

std::string NcclWorld::Build(const std::vector<int>& who) {
  SayBuild(who);
  std::string how;
  for (const int member : who) {
    const Reply reply = Heard(member);
    EXPECT_TRUE(reply.ok) << "member " << member << ": " << reply.text;
    how = reply.text;
  }
  return how;
}

Reply NcclWorld::Heard(int member, int64_t ms) {
  Reply reply;
  const std::string line = (*this)[member].Hear(ms);
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  if (kind == "error") words >> reply.code >> reply.at_us;
  if (kind == "ok") reply.ok = true, reply.code = 0;
  std::getline(words >> std::ws, reply.text);
  if (kind != "ok" && kind != "error") reply.text = "said '" + line + "'";
  return reply;
}

void NcclWorld::Check(const std::vector<int>& who) {
  ++checks_;
  for (const int member : who) Say(member, "check " + std::to_string(checks_));
  for (const int member : who) {
    const Reply reply = Heard(member);
    EXPECT_TRUE(reply.ok) << "member " << member << ": " << reply.text;
  }
}

void NcclWorld::StartReducing(const std::vector<int>& who, int victim) {
  for (const int member : who) Say(member, "reduce 1000000");
  std::string line;
  do {
    line = (*this)[victim].Hear(kReplyMs);
    ASSERT_EQ(line.rfind("round ", 0), 0u) << "the victim said '" << line << "'";
  } while (line != "round 2");
}

Reply NcclWorld::ReduceError(int member, int64_t ms) {
  for (;;) {
    Reply reply = Heard(member, ms);
    if (reply.text.rfind("said 'round ", 0) != 0) return reply;
  }
}

}  // namespace holdfast
