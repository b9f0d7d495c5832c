#include "runtime/models/sampling.h"

#include <cmath>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/models/data/token_text.h"
#include "runtime/models/settings.h"

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};

TEST(Sampling, GreedyTakesTheFirstOfTheLargest) {
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(ChooseToken(kLogits, {.temperature = 0}, i), 1);
  EXPECT_EQ(ChooseToken(kLogits, {.temperature = 1, .top_k = 1}, 3), 1);
}

TEST(Sampling, SharesAreThoseOfTheSoftmax) {
  constexpr int64_t kDraws = 40'000;
  for (const double temperature : {0.5, 1.0, 2.0}) {
    std::vector<double> expected;
    double sum = 0;
    for (const float x : kLogits) sum += std::exp(x / temperature);
    for (const float x : kLogits) expected.push_back(std::exp(x / temperature) / sum);
    std::vector<int64_t> count(kLogits.size(), 0);
    for (int64_t i = 0; i < kDraws; ++i)
      ++count[ChooseToken(kLogits, {.temperature = temperature, .seed = 7}, i)];
    for (size_t t = 0; t < kLogits.size(); ++t) {
      const double deviation = std::sqrt(kDraws * expected[t] * (1 - expected[t]));
      EXPECT_NEAR(static_cast<double>(count[t]), kDraws * expected[t], 5 * deviation) << t;
    }
  }
}

TEST(Sampling, TopKLeavesOutTheRest) {
  std::set<int32_t> drawn;
  for (int64_t i = 0; i < 2000; ++i)
    drawn.insert(ChooseToken(kLogits, {.temperature = 3, .top_k = 3}, i));
  EXPECT_THAT(drawn, ElementsAre(1, 3, 4));
}

TEST(Sampling, TheSeedAndThePlaceDecide) {
  std::vector<int32_t> a, b, other;
  for (int64_t i = 0; i < 50; ++i) {
    a.push_back(ChooseToken(kLogits, {.seed = 1}, i));
    b.push_back(ChooseToken(kLogits, {.seed = 1}, i));
    other.push_back(ChooseToken(kLogits, {.seed = 2}, i));
  }
  EXPECT_EQ(a, b);
  EXPECT_NE(a, other);
}

TEST(Sampling, WhatIsNotFiniteIsNeverDrawn) {
  const std::vector<float> logits = {NAN, 1.0f, INFINITY, -INFINITY};
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(ChooseToken(logits, {}, i), 1);
  EXPECT_EQ(ChooseToken(std::vector<float>{NAN, NAN}, {}, 0), -1);
}

TEST(TokenText, BytesAndNumbers) {
  EXPECT_THAT(*TokenText::Bytes().Encode("A\xFF"), ElementsAre(65, 255));
  EXPECT_EQ(TokenText::Bytes().Decode(65), "A");
  EXPECT_THAT(*TokenText::Numbers().Encode(" 464  3290 "), ElementsAre(464, 3290));
  EXPECT_EQ(TokenText::Numbers().Decode(464), "464 ");
  EXPECT_FALSE(TokenText::Numbers().Encode("The dog").ok());
  EXPECT_FALSE(TokenText::Numbers().Encode("-1").ok());
}

TEST(TokenText, AVocabularySpellsThePrompt) {
  const auto text = TokenText::Vocabulary("a\nab\n\\n\n\\x20dog\n\\\\\nb\n");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text->Encode("ab dog\\\na"), ElementsAre(1, 3, 4, 2, 0));
  EXPECT_EQ(text->Decode(3), " dog");
  EXPECT_EQ(text->Decode(99), "<99>");
  EXPECT_FALSE(text->Encode("cat").ok());
  const auto bad = TokenText::Vocabulary("a\nb\\z\n");
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("line 2"));
}

TEST(Settings, ReadsKeysOfTheProgramAndOfOnesOwn) {
  const auto s = Settings::Parse(
      "micro-batches = 8\nlearning_rate = 0.5\ndata = [\"a\", \"b\"]\nmodel = \"mine\"\n"
      "[model_keys]\n\"window\" = \"6\"\n\"deep-rate\" = \"2e-5\"\n");
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_EQ(*s->Integer("micro_batches", 1, 4096), 8);
  EXPECT_EQ(*s->Integer("model.window", 1, 64), 6);
  EXPECT_EQ(*s->Integer("model.depth", 1, 64, 3), 3);
  EXPECT_EQ(*s->Number("model.deep_rate", 0, 1), 2e-5);
  EXPECT_EQ(*s->Number("learning_rate", 0, 1), 0.5);
  EXPECT_THAT(s->List("data"), ElementsAre("a", "b"));
  EXPECT_FALSE(s->Text("data").ok()) << "a list is not one value";
  EXPECT_FALSE(s->Integer("model.window", 7, 64).ok());
  EXPECT_THAT(std::string(s->Integer("model.depth", 1, 2).status().message()),
              HasSubstr("--set depth=VALUE"));
  EXPECT_TRUE(s->CheckOwnKeys({"window", "deep_rate"}).ok());
  EXPECT_THAT(std::string(s->CheckOwnKeys({"deep_rate"}).message()), HasSubstr("model.window"));
  EXPECT_FALSE(Settings::Parse("a = = 1").ok());
}

}  // namespace
}  // namespace holdfast
