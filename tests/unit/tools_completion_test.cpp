// What a shell is offered, and the word that was meant.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tools/commands.h"
#include "tools/common/nearest.h"
#include "tools/common/output.h"
#include "tools/completion/candidates.h"

namespace nccl_ha::tools {
namespace {

using Words = std::vector<std::string>;

class Completion : public ::testing::Test {
 protected:
  Completion() {
    add_perf(app_);
    add_info(app_);
    add_check(app_);
    add_lab(app_);
    add_relay(app_);
    add_agent(app_);
    add_trace(app_);
    add_stat(app_);
    add_top(app_);
    add_tune(app_);
    add_report(app_);
    add_complete(app_);
  }
  Words offered(const Words& words) const {
    return completion_candidates(app_, words,
                                 {[] {
                                    return Words{"pair-1", "ring"};
                                  },
                                  [] {
                                    return Words{"rail0", "rail1"};
                                  },
                                  [] {
                                    return Words{"h1", "h2"};
                                  }});
  }
  static bool has(const Words& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  }

  CLI::App app_{"all"};
};

TEST_F(Completion, SubcommandsFirst) {
  const Words all = offered({""});
  EXPECT_EQ(all, (Words{"agent", "check", "info", "lab", "perf", "relay", "report", "stat", "top",
                        "trace", "tune"}))
      << "and not the one that shells ask";
  EXPECT_EQ(offered({"pe"}), Words{"perf"});
  EXPECT_TRUE(offered({"zzz"}).empty());
}

TEST_F(Completion, WhatACommandTakes) {
  EXPECT_EQ(offered({"perf", "all"}), (Words{"all_gather", "all_reduce", "alltoall"}));
  EXPECT_TRUE(offered({"perf", "all_reduce", "al"}).empty()) << "one operation is enough";
  EXPECT_EQ(offered({"perf", "all_reduce", "--ty"}), Words{"--type"});
  EXPECT_EQ(offered({"perf", "--type", "f"}), Words{"float"});
  EXPECT_EQ(offered({"trace", "ex"}), Words{"export"});
  EXPECT_EQ(offered({"trace", "export", "--format", ""}), Words{"perfetto"});
  EXPECT_EQ(offered({"top", "--sort", "r"}), (Words{"rate", "received"}));
  EXPECT_EQ(offered({"perf", "-d", "dou"}), Words{"double"});
  EXPECT_TRUE(has(offered({"perf", "--plugin", "/tmp"}), any_file));
  EXPECT_TRUE(offered({"perf", "--iters", ""}).empty()) << "any number";
  EXPECT_TRUE(has(offered({"perf", "latency", "--env", "HA_NCCL_RTO"}), "HA_NCCL_RTO_MS="));
  EXPECT_TRUE(offered({"check", ""}).empty());
  EXPECT_TRUE(offered({"info", "x"}).empty());
}

TEST_F(Completion, ValuesAfterAnEqualsSign) {
  EXPECT_EQ(offered({"perf", "--type=f"}), Words{"--type=float"});
  EXPECT_TRUE(has(offered({"lab", "run", "--env=HA_NCCL_RTO"}), "--env=HA_NCCL_RTO_MS="));
  EXPECT_EQ(offered({"agent", "--settings="}), Words{any_file});
  EXPECT_TRUE(offered({"perf", "--iters="}).empty()) << "any number";
}

TEST_F(Completion, WhatIsOfferedBelongsToSomething) {
  EXPECT_EQ(places_without_a_meaning(app_), Words{});
}

TEST_F(Completion, NamesOfRunningLabs) {
  EXPECT_EQ(offered({"lab", "cut", ""}), (Words{"rail0", "rail1"}));
  EXPECT_EQ(offered({"lab", "cut", "--lab", ""}), (Words{"pair-1", "ring"}));
  EXPECT_EQ(offered({"lab", "kill", "h"}), (Words{"h1", "h2"}));
  EXPECT_EQ(offered({"lab", "enter", "h2"}), Words{"h2"});
  EXPECT_EQ(offered({"lab", "enter", "h1", "--", "l"}), Words{any_file});
  EXPECT_EQ(offered({"lab", "clean", "p"}), Words{"pair-1"});
  EXPECT_TRUE(has(offered({"lab", ""}), "enter"));
  EXPECT_FALSE(has(offered({"lab", "run", "pair", "--"}), "--lab")) << "run makes one";
}

TEST_F(Completion, WhatWasGivenIsNotOfferedAgain) {
  EXPECT_FALSE(has(offered({"check", "--json", "--"}), "--json"));
  EXPECT_TRUE(has(offered({"check", "--strict", "--"}), "--json"));
}

TEST(NearestWord, IsNearOrNothing) {
  const Words known{"perf", "info", "check", "--minbytes", "--maxbytes"};
  EXPECT_EQ(nearest_word("prf", known), "perf");
  EXPECT_EQ(nearest_word("chekc", known), "check");
  EXPECT_EQ(nearest_word("--minbyte", known), "--minbytes");
  EXPECT_EQ(nearest_word("--min", known), "--minbytes");
  EXPECT_EQ(nearest_word("frobnicate", known), "");
  EXPECT_EQ(did_you_mean("inof", known), "; did you mean info?");
}

TEST(JsonOutput, IsAskedForOnStandardOutput) {
  const auto asks = [](std::vector<const char*> words) {
    words.insert(words.begin(), "nccl-ha");
    return asks_for_json(static_cast<int>(words.size()), words.data());
  };
  EXPECT_TRUE(asks({"check", "--json"}));
  EXPECT_TRUE(asks({"perf", "all_reduce", "--json", "-"}));
  EXPECT_TRUE(asks({"perf", "all_reduce", "--json=-"}));
  EXPECT_FALSE(asks({"perf", "all_reduce", "--json", "file"}));
  EXPECT_FALSE(asks({"check"}));
  EXPECT_FALSE(asks({"lab", "run", "pair", "--", "nccl-ha", "check", "--json"}));
}

}  // namespace
}  // namespace nccl_ha::tools
