// A path over a line of relays, with memory at both of its ends.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "tests/support/path_harness.h"
#include "tests/support/relay_line.h"

namespace nccl_ha::test {

struct RelayedPair {
  struct End {
    RecordingOwner owner;
    std::vector<std::byte> bytes;
    fabric::Registration registration;
    uint32_t key = 0;
    std::unique_ptr<fabric::Path> path;
  };
  /// `connect_limit`: of the end that asks; 0: as the other one's.
  RelayedPair(RelayLine& line, size_t bytes, uint64_t domain, uint32_t receives = 128,
              std::optional<uint16_t> slots = std::nullopt, Duration connect_limit = Duration(0)) {
    for (size_t side = 0; side < 2; ++side) {
      const size_t host = side == 0 ? 0 : line.hosts() - 1;
      ends[side].bytes.resize(bytes);
      ends[side].registration = line.process(host)
                                    .provider
                                    ->add_memory({0, fabric::datagram_kind}, domain,
                                                 ends[side].bytes.data(), bytes, false)
                                    .value();
      ends[side].key = ends[side].registration.local_key;
      fabric::PathOptions options;
      options.domain = domain;
      options.writes_max = 128;
      options.receives_max = receives;
      options.active = side == 0;
      options.connect_limit = side == 0 ? connect_limit : Duration(0);
      ends[side].path = line.make_path(host, options, &ends[side].owner, slots).value();
    }
  }
  bool connect(RelayLine& line) {
    EXPECT_TRUE(ends[0].path->connect(ends[1].path->local_address()));
    EXPECT_TRUE(ends[1].path->connect(ends[0].path->local_address()));
    return line.world().run_until([&] { return ready(); }, std::chrono::seconds(5));
  }
  bool ready() const {
    return ends[0].path->state() == fabric::PathState::ready &&
           ends[1].path->state() == fabric::PathState::ready;
  }
  Errc write(size_t from, uint64_t id, size_t bytes, size_t offset = 0) {
    const size_t to = 1 - from;
    fabric::WritePost post;
    post.id = id;
    post.gather_count = 1;
    post.gathers[0] = {ends[from].bytes.data() + offset, static_cast<uint32_t>(bytes),
                       ends[from].key};
    post.remote_address = reinterpret_cast<uint64_t>(ends[to].bytes.data() + offset);
    post.remote_key = ends[to].key;
    post.has_immediate = true;
    post.immediate = static_cast<uint32_t>(id);
    return ends[from].path->post_write(post);
  }
  void receive(size_t side, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(ends[side].path->post_receive(), Errc::ok);
    }
  }
  /// And its owner knows.
  bool failed(size_t side) const {
    const auto& states = ends[side].owner.states;
    return std::find(states.begin(), states.end(), fabric::PathState::error) != states.end();
  }
  size_t completions(size_t side) const { return ends[side].owner.completions.size(); }
  End ends[2];
};

/// So many, or fewer where one could not be connected.
inline std::vector<std::unique_ptr<RelayedPair>> connected_pairs(RelayLine& line, size_t bytes,
                                                                 uint64_t count) {
  std::vector<std::unique_ptr<RelayedPair>> pairs;
  while (pairs.size() < count) {
    auto next = std::make_unique<RelayedPair>(line, bytes, pairs.size() + 1);
    if (!next->connect(line)) {
      break;
    }
    pairs.push_back(std::move(next));
  }
  return pairs;
}

inline void fill(std::vector<std::byte>& bytes, uint64_t seed) {
  Random random(seed);
  for (std::byte& one : bytes) {
    one = static_cast<std::byte>(random.next());
  }
}

/// A receiver fails its path in the midst of messages, at a moment that the seed draws: when all
/// that it had posted is flushed, its buffer is somebody else's.
inline void expect_nothing_late(const RelayLine::Options& options) {
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  fill(pair.ends[0].bytes, options.seed);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 100);
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(pair.write(0, i, 1 << 20), Errc::ok);
  }
  Random random(options.seed);
  ASSERT_TRUE(
      line.world().run_until([&] { return pair.completions(1) >= 1; }, std::chrono::seconds(5)));
  static_cast<void>(
      line.world().run_until([] { return false; }, std::chrono::microseconds(random.below(5000))));
  const size_t held = line.node(1).sessions()[0]->waiting(0);
  pair.ends[1].path->fail(fail(Errc::closed, "the fence"));
  ASSERT_TRUE(
      line.world().run_until([&] { return pair.completions(1) == 100; }, std::chrono::seconds(1)));
  std::fill(pair.ends[1].bytes.begin(), pair.ends[1].bytes.end(), std::byte{0x11});
  static_cast<void>(line.world().run_until([] { return false; }, std::chrono::seconds(5)));
  EXPECT_TRUE(std::all_of(pair.ends[1].bytes.begin(), pair.ends[1].bytes.end(),
                          [](std::byte one) { return one == std::byte{0x11}; }))
      << options.seed << ", of which a relay held " << held;
}

}  // namespace nccl_ha::test
