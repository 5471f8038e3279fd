#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tools/top/agents.h"
#include "tools/top/stat.h"

namespace nccl_ha::tools {
namespace {

/// A connection with one path, as two readings of the same process have them.
struct Readings {
  CounterReading before;
  CounterReading now;

  Readings() {
    CounterSnapshot snapshot;
    snapshot.host = "h1";
    snapshot.pid = 7;
    snapshot.scopes = {{"connection", "", {name("bytes_received"), name("sends")}},
                       {"path", "", {name("bytes_received"), name("writes"), name("writes_done")}}};
    snapshot.blocks = {block(1, 0, 0, "send-connection", {10, 1}), block(2, 1, 1, "path 0", {})};
    snapshot.blocks[1].values = {10, 5, 5};
    before.files.push_back({"a file", true, snapshot});
    now = before;
  }
  CounterSnapshot::Block& path(CounterReading& of) { return of.files[0].snapshot.blocks[1]; }

 private:
  static CounterSnapshot::Name name(const char* text) {
    CounterSnapshot::Name made;
    made.name = text;
    return made;
  }
  static CounterSnapshot::Block block(uint64_t id, size_t scope, uint64_t parent, const char* label,
                                      std::vector<uint64_t> values) {
    CounterSnapshot::Block made;
    made.id = id;
    made.scope = scope;
    made.parent = parent;
    made.label = label;
    made.values = std::move(values);
    return made;
  }
};

TEST(StatSums, WhatMovesIsNotJudged) {
  Readings all;
  EXPECT_EQ(check_sums(all.now, all.before).checked, 1U);
  EXPECT_TRUE(check_sums(all.now, all.before).wrong.empty());
  // Read while the path counts: one number is newer than the other.
  all.path(all.now).values = {10, 5, 6};
  const SumCheck moving = check_sums(all.now, all.before);
  EXPECT_EQ(moving.checked, 0U);
  EXPECT_TRUE(moving.wrong.empty());
  all.path(all.before).values = {10, 5, 6};
  EXPECT_EQ(check_sums(all.now, all.before).wrong.size(), 1U) << "it stands still, and is wrong";
}

TEST(StatPrometheus, TwoCopiesOfThePluginInAProcessAreTwoSeries) {
  Readings all;
  all.now.files.push_back(all.now.files[0]);
  all.now.files[1].snapshot.instance = 1;
  const std::string text = stat_prometheus(all.now);
  EXPECT_NE(text.find("instance=\"0\""), std::string::npos);
  EXPECT_NE(text.find("instance=\"1\""), std::string::npos);
}

TEST(TopAgentsTest, OfAnAnswerTheBodyIsTakenIfItIsWhole) {
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: x\r\nContent-Length: 3\r\n\r\n";
  const auto body = http_body(head + "abc");
  ASSERT_TRUE(body) << body.error().message();
  EXPECT_EQ(*body, "abc");
  const auto refusal = [](const std::string& answer) {
    const auto wrong = http_body(answer);
    return wrong ? "none" : wrong.error().message();
  };
  EXPECT_NE(refusal(head + "ab").find("cut short"), std::string::npos);
  EXPECT_NE(refusal("HTTP/1.1 200 OK\r\n\r\nContent-Length: 1").find("cut short"),
            std::string::npos);
  EXPECT_NE(refusal("HTTP/1.1 404 Not Found\r\n\r\n").find("\"404 Not Found\""), std::string::npos);
  EXPECT_NE(refusal("HTTP/1.1 200 OK\r\n").find("no agent"), std::string::npos);
  EXPECT_NE(refusal("SSH-2.0-OpenSSH\r\n\r\n").find("no agent"), std::string::npos);
  EXPECT_NE(refusal("").find("no agent"), std::string::npos);
  EXPECT_NE(refusal("HTTP/1.1\r\n\r\n").find("another version"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha::tools
