// What every provider must do.  The suite runs against each way of making a path; a provider that
// comes later adds its harness to the list at the end and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "runtime/base/random.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::test {
namespace {

using fabric::Completion;
using fabric::CompletionKind;
using fabric::CompletionStatus;
using fabric::PathState;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration time_limit = seconds(60);

struct Provider {
  const char* name;
  HarnessFactory make;
};

void PrintTo(const Provider& provider, std::ostream* out) { *out << provider.name; }

std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> out(bytes);
  for (auto& b : out) {
    b = static_cast<std::byte>(random.next());
  }
  return out;
}

class PathContract : public ::testing::TestWithParam<Provider> {
 protected:
  void SetUp() override {
    harness_ = GetParam().make();
    fabric::PathOptions options;
    options.writes_max = 128;
    options.receives_max = 128;
    options.active = true;
    a_ = harness_->make_end(0, options);
    options.active = false;
    b_ = harness_->make_end(1, options);
    ASSERT_TRUE(a_->path && b_->path);
  }
  void connect() {
    ASSERT_TRUE(a_->path->connect(b_->path->local_address()));
    ASSERT_TRUE(b_->path->connect(a_->path->local_address()));
    ASSERT_TRUE(run([&] {
      return a_->path->state() == PathState::ready && b_->path->state() == PathState::ready &&
             !a_->owner.states.empty() && !b_->owner.states.empty();
    })) << a_->path->describe();
    EXPECT_EQ(a_->owner.states.front(), PathState::ready);
  }
  bool run(const std::function<bool()>& done) { return harness_->run_until(done, time_limit); }

  struct Buffer {
    Buffer(PathHarness::End& end, size_t length)
        : bytes(length), key(end.add(bytes.data(), length)), remove(end.remove) {}
    Buffer(PathHarness::End& end, std::vector<std::byte> content)
        : bytes(std::move(content)), key(end.add(bytes.data(), bytes.size())), remove(end.remove) {}
    ~Buffer() { release(); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    void release() {
      if (remove) {
        remove(key);
        remove = nullptr;
      }
    }
    uint64_t address() const { return reinterpret_cast<uint64_t>(bytes.data()); }
    std::vector<std::byte> bytes;
    PathHarness::Keys key;
    std::function<void(PathHarness::Keys)> remove;
  };
  static fabric::WritePost write_post(uint64_t id, const Buffer& from, size_t offset, size_t length,
                                      const Buffer& to, size_t to_offset) {
    fabric::WritePost post;
    post.id = id;
    post.gather_count = length == 0 ? 0 : 1;
    post.gathers[0] = {from.bytes.data() + offset, static_cast<uint32_t>(length), from.key.local};
    post.remote_address = to.address() + to_offset;
    post.remote_key = to.key.remote;
    return post;
  }
  static fabric::WritePost immediate_post(uint64_t id, const Buffer& from, size_t length,
                                          const Buffer& to, uint32_t immediate) {
    auto post = write_post(id, from, 0, length, to, 0);
    post.has_immediate = true;
    post.immediate = immediate;
    return post;
  }
  void post_credits(PathHarness::End& end, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(end.path->post_receive(), Errc::ok);
    }
  }

  std::unique_ptr<PathHarness> harness_;
  std::unique_ptr<PathHarness::End> a_;
  std::unique_ptr<PathHarness::End> b_;
};

TEST_P(PathContract, WriteLandsWhereItBelongs) {
  connect();
  Buffer from(*a_, pattern(1 << 20, 1));
  Buffer to(*b_, (1 << 20) + 256);
  ASSERT_EQ(a_->path->post_write(write_post(7, from, 0, 1 << 20, to, 128)), Errc::ok);
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 1; }));
  const Completion& done = a_->owner.completions[0];
  EXPECT_EQ(done.id, 7U);
  EXPECT_EQ(done.status, CompletionStatus::ok);
  EXPECT_EQ(done.bytes, 1U << 20);
  EXPECT_TRUE(std::equal(from.bytes.begin(), from.bytes.end(), to.bytes.begin() + 128));
  const auto zero = [](std::byte b) { return b == std::byte{0}; };
  EXPECT_TRUE(std::all_of(to.bytes.begin(), to.bytes.begin() + 128, zero));
  EXPECT_TRUE(std::all_of(to.bytes.end() - 128, to.bytes.end(), zero));
  EXPECT_TRUE(b_->owner.completions.empty()) << "a plain write is silent at the peer";
}

TEST_P(PathContract, EverySizeArrivesWhole) {
  connect();
  Buffer from(*a_, pattern(300000, 2));
  Buffer to(*b_, 300000);
  uint64_t id = 0;
  for (const size_t size : {0UL, 1UL, 7UL, 64UL, 767UL, 768UL, 769UL, 1408UL, 1409UL, 4096UL,
                            65407UL, 65408UL, 65409UL, 131072UL, 299999UL}) {
    post_credits(*b_, 1);
    const size_t before = b_->owner.completions.size();
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0});
    ASSERT_EQ(
        a_->path->post_write(immediate_post(id++, from, size, to, static_cast<uint32_t>(size))),
        Errc::ok);
    ASSERT_TRUE(run([&] {
      return b_->owner.completions.size() > before && a_->owner.completions.size() == id;
    })) << size;
    const Completion& got = b_->owner.completions.back();
    EXPECT_EQ(got.kind, CompletionKind::receive_immediate);
    EXPECT_TRUE(got.has_immediate);
    EXPECT_EQ(got.immediate, size);
    EXPECT_EQ(got.bytes, size);
    EXPECT_TRUE(std::equal(to.bytes.begin(), to.bytes.begin() + static_cast<ptrdiff_t>(size),
                           from.bytes.begin()));
    EXPECT_TRUE(std::all_of(to.bytes.begin() + static_cast<ptrdiff_t>(size), to.bytes.end(),
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_P(PathContract, CompletesInOrderWithManyInFlight) {
  connect();
  constexpr size_t count = 600;
  Buffer from(*a_, pattern(40000, 3));
  Buffer to(*b_, 40000);
  Random random(5);
  std::vector<size_t> sizes(count);
  std::generate(sizes.begin(), sizes.end(), [&] {
    return static_cast<size_t>(random.below(random.chance(0.5) ? 700 : 40000));
  });
  size_t posted = 0;
  size_t credited = 0;
  ASSERT_TRUE(run([&] {
    while (credited < count && credited < b_->owner.completions.size() + 100) {
      if (b_->path->post_receive() != Errc::ok) {
        break;
      }
      ++credited;
    }
    while (posted < count &&
           a_->path->post_write(immediate_post(posted, from, sizes[posted], to,
                                               static_cast<uint32_t>(posted))) == Errc::ok) {
      ++posted;
    }
    return a_->owner.completions.size() == count && b_->owner.completions.size() == count;
  })) << a_->owner.completions.size()
      << " " << b_->owner.completions.size();
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(a_->owner.completions[i].id, i);
    ASSERT_EQ(a_->owner.completions[i].status, CompletionStatus::ok);
    ASSERT_EQ(b_->owner.completions[i].kind, CompletionKind::receive_immediate);
    ASSERT_EQ(b_->owner.completions[i].status, CompletionStatus::ok);
    ASSERT_EQ(b_->owner.completions[i].immediate, i);
    ASSERT_EQ(b_->owner.completions[i].bytes, sizes[i]);
  }
}

TEST_P(PathContract, DataIsThereWhenTheImmediateIs) {
  connect();
  post_credits(*b_, 100);
  Buffer from(*a_, pattern(200000, 4));
  Buffer to(*b_, 200000);
  size_t wrong = 0;
  b_->owner.hook = [&](const Completion& c) {
    wrong += std::equal(from.bytes.begin(), from.bytes.begin() + c.bytes, to.bytes.begin()) ? 0 : 1;
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0});
  };
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_EQ(a_->path->post_write(immediate_post(i, from, 200000 - i * 9999, to, i)), Errc::ok);
    ASSERT_TRUE(run([&] { return b_->owner.completions.size() == i + 1; }));
  }
  EXPECT_EQ(wrong, 0U);
}

TEST_P(PathContract, NothingIsWrittenAfterTheImmediate) {
  connect();
  post_credits(*b_, 64);
  Buffer from(*a_, pattern(100000, 9));
  Buffer to(*b_, 100000);
  for (uint32_t i = 0; i < 32; ++i) {
    ASSERT_EQ(a_->path->post_write(immediate_post(i, from, 100000, to, i)), Errc::ok);
    ASSERT_TRUE(run([&] { return b_->owner.completions.size() == i + 1; }));
    // The buffer is the receiver's again: whatever is repeated on the wire must not touch it.
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0xEE});
    ASSERT_TRUE(run([&] { return a_->owner.completions.size() == i + 1; }));
    static_cast<void>(harness_->run_until([] { return false; }, milliseconds(3)));
    ASSERT_EQ(std::ranges::count(to.bytes, std::byte{0xEE}), std::ssize(to.bytes));
  }
}

TEST_P(PathContract, GathersTwoPieces) {
  connect();
  Buffer first(*a_, pattern(70001, 5));
  Buffer second(*a_, pattern(90003, 6));
  Buffer to(*b_, 160004);
  fabric::WritePost post;
  post.id = 1;
  post.gather_count = 2;
  post.gathers[0] = {first.bytes.data(), 70001, first.key.local};
  post.gathers[1] = {second.bytes.data(), 90003, second.key.local};
  post.remote_address = to.address();
  post.remote_key = to.key.remote;
  ASSERT_EQ(a_->path->post_write(post), Errc::ok);
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 1; }));
  EXPECT_TRUE(std::equal(first.bytes.begin(), first.bytes.end(), to.bytes.begin()));
  EXPECT_TRUE(std::equal(second.bytes.begin(), second.bytes.end(), to.bytes.begin() + 70001));
}

TEST_P(PathContract, WhatGoesOutAtOnceOvertakesNothing) {
  connect();
  constexpr uint32_t count = 100;
  post_credits(*b_, count);
  Buffer from(*a_, pattern(4096, 3));
  Buffer to(*b_, 4096);
  uint32_t posted = 0;
  ASSERT_TRUE(run([&] {
    // Some go out at once, some with those before them, some when the turn ends.
    for (uint32_t burst = posted % 4 + 1; burst != 0 && posted < count; --burst) {
      auto post = immediate_post(posted, from, 4096, to, posted);
      post.last = posted % 3 == 0;
      posted += a_->path->post_write(post) == Errc::ok ? 1 : 0;
    }
    return posted == count;
  }));
  ASSERT_TRUE(run([&] {
    return b_->owner.completions.size() == count && a_->owner.completions.size() == count;
  }));
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(b_->owner.completions[i].immediate, i);
    EXPECT_EQ(a_->owner.completions[i].id, i);
  }
}

TEST_P(PathContract, ImmediateWaitsForAReceive) {
  connect();
  Buffer from(*a_, pattern(100, 1));
  Buffer to(*b_, 100);
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_EQ(a_->path->post_write(immediate_post(i, from, 100, to, i)), Errc::ok);
  }
  static_cast<void>(harness_->run_until([] { return false; }, milliseconds(50)));
  EXPECT_TRUE(b_->owner.completions.empty());
  EXPECT_EQ(a_->path->state(), PathState::ready);
  post_credits(*b_, 5);
  ASSERT_TRUE(run([&] { return b_->owner.completions.size() == 5; }));
  EXPECT_EQ(b_->owner.completions[4].immediate, 4U);
}

TEST_P(PathContract, QuietWritesReportOnlyFailures) {
  connect();
  post_credits(*b_, 128);
  Buffer from(*a_, pattern(64, 2));
  Buffer to(*b_, 64);
  size_t posted = 0;
  size_t arrived = 0;
  const auto renew_credits = [&](size_t least) {
    if (b_->owner.completions.size() > least) {
      arrived += b_->owner.completions.size();
      post_credits(*b_, b_->owner.completions.size());
      b_->owner.completions.clear();
    }
  };
  // More than the queue holds: their places come back although nothing is reported.
  ASSERT_TRUE(run([&] {
    auto post = immediate_post(posted, from, 64, to, static_cast<uint32_t>(posted));
    post.unsignaled = true;
    post.host_memory = true;
    while (posted < 600 && a_->path->post_write(post) == Errc::ok) {
      ++posted;
    }
    renew_credits(100);
    return posted == 600;
  }));
  // Without a receive the peer is not ready for any write, be it good or bad.
  ASSERT_TRUE(run([&] {
    renew_credits(0);
    return arrived == 600;
  }));
  EXPECT_TRUE(a_->owner.completions.empty());
  EXPECT_EQ(from.bytes, to.bytes);
  auto bad = immediate_post(9999, from, 64, to, 0);
  bad.remote_key = to.key.remote + 1;
  bad.unsignaled = true;
  ASSERT_TRUE(run([&] { return a_->path->post_write(bad) == Errc::ok; }));
  ASSERT_TRUE(run([&] { return !a_->owner.completions.empty(); }));
  EXPECT_EQ(a_->owner.count(CompletionKind::write, CompletionStatus::remote_access), 1U)
      << a_->owner.last_error.message() << " / " << b_->owner.last_error.message();
}

TEST_P(PathContract, AnIdlePathWithQuietWritesStaysAlive) {
  connect();
  post_credits(*b_, 4);
  Buffer from(*a_, pattern(64, 2));
  Buffer to(*b_, 64);
  auto post = immediate_post(1, from, 64, to, 7);
  post.unsignaled = true;
  ASSERT_EQ(a_->path->post_write(post), Errc::ok);
  // Longer than any provider under test takes to call a silent peer dead.
  static_cast<void>(harness_->run_until([] { return false; }, milliseconds(3500)));
  EXPECT_EQ(a_->path->state(), PathState::ready);
  EXPECT_EQ(b_->owner.completions.size(), 1U);
  EXPECT_TRUE(a_->owner.completions.empty());
}

TEST_P(PathContract, FullQueueSaysAgainAndRecovers) {
  connect();
  Buffer from(*a_, 8);
  Buffer to(*b_, 8);
  size_t posted = 0;
  while (a_->path->post_write(write_post(posted, from, 0, 8, to, 0)) == Errc::ok) {
    ASSERT_LT(++posted, 129U);
  }
  EXPECT_EQ(posted, 128U);
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 128; }));
  EXPECT_EQ(a_->path->post_write(write_post(0, from, 0, 8, to, 0)), Errc::ok);
}

TEST_P(PathContract, WrongRemoteKeyIsRefused) {
  connect();
  Buffer from(*a_, 4096);
  Buffer to(*b_, 4096);
  auto post = write_post(1, from, 0, 4096, to, 0);
  post.remote_key = to.key.remote + 1;
  ASSERT_EQ(a_->path->post_write(post), Errc::ok);
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 1; }));
  EXPECT_EQ(a_->owner.completions[0].status, CompletionStatus::remote_access);
  EXPECT_EQ(a_->path->cause(), CompletionStatus::remote_access);
  EXPECT_EQ(a_->path->state(), PathState::error);
  EXPECT_EQ(a_->path->post_write(post), Errc::closed);
}

TEST_P(PathContract, RangeBehindTheRegionIsRefused) {
  connect();
  Buffer from(*a_, 4096);
  Buffer to(*b_, 4096);
  ASSERT_EQ(a_->path->post_write(write_post(1, from, 0, 4096, to, 1)), Errc::ok);
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 1; }));
  EXPECT_EQ(a_->owner.completions[0].status, CompletionStatus::remote_access);
  EXPECT_EQ(a_->path->cause(), CompletionStatus::remote_access);
}

TEST_P(PathContract, MemoryOfAnotherDomainIsRefusedWhereDomainsExist) {
  connect();
  Buffer from(*a_, pattern(4096, 5));
  std::vector<std::byte> other(4096);
  const auto key = b_->add_foreign(other.data(), other.size());
  ASSERT_NE(key.remote, 0U);
  auto post = write_post(1, from, 0, 4096, from, 0);
  post.remote_address = reinterpret_cast<uint64_t>(other.data());
  post.remote_key = key.remote;
  ASSERT_EQ(a_->path->post_write(post), Errc::ok);
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 1; }));
  EXPECT_EQ(a_->owner.completions[0].status,
            harness_->shares_memory() ? CompletionStatus::ok : CompletionStatus::remote_access);
  EXPECT_EQ(other == from.bytes, harness_->shares_memory());
}

TEST_P(PathContract, DeregisteredSourceIsALocalError) {
  connect();
  Buffer from(*a_, 4096);
  Buffer to(*b_, 4096);
  from.release();
  ASSERT_EQ(a_->path->post_write(write_post(1, from, 0, 4096, to, 0)), Errc::ok);
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 1; }));
  EXPECT_EQ(a_->owner.completions[0].status,
            harness_->reported(CompletionStatus::local_protection));
}

TEST_P(PathContract, FailFlushesEverythingOnce) {
  connect();
  post_credits(*a_, 3);
  Buffer from(*a_, 1 << 20);
  Buffer to(*b_, 1 << 20);
  // None is done before: there is no receive for it.
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_EQ(a_->path->post_write(immediate_post(i, from, 1 << 20, to, i)), Errc::ok);
  }
  a_->path->fail(fail(Errc::closed, "test"));
  EXPECT_TRUE(a_->owner.completions.empty()) << "completions never come from inside a call";
  ASSERT_TRUE(run([&] { return a_->owner.completions.size() == 13; }));
  for (const Completion& c : a_->owner.completions) {
    EXPECT_EQ(c.status, CompletionStatus::flushed);
  }
  EXPECT_EQ(a_->path->state(), PathState::error);
  EXPECT_EQ(std::count(a_->owner.states.begin(), a_->owner.states.end(), PathState::error), 1);
}

TEST_P(PathContract, NothingIsWrittenOnceAllIsBackAfterFail) {
  connect();
  post_credits(*b_, 4);
  Buffer from(*a_, std::vector(1 << 20, std::byte{3}));
  Buffer to(*b_, 1 << 20);
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(a_->path->post_write(write_post(i, from, 0, 1 << 20, to, 0)), Errc::ok);
  }
  ASSERT_TRUE(run([&] { return to.bytes[0] != std::byte{0}; })) << "nothing is under way";
  b_->path->fail(fail(Errc::closed, "test"));
  ASSERT_TRUE(run([&] { return b_->owner.completions.size() == 4; }));
  std::fill(to.bytes.begin(), to.bytes.end(), std::byte{0x11});
  static_cast<void>(harness_->run_until([] { return false; }, milliseconds(30)));
  EXPECT_EQ(std::ranges::count(to.bytes, std::byte{0x11}), 1 << 20);
}

TEST_P(PathContract, DeadPeerIsNoticedWithinTheBudget) {
  connect();
  Buffer from(*a_, 4096);
  Buffer to(*b_, 4096);
  harness_->cut();
  ASSERT_EQ(a_->path->post_write(write_post(1, from, 0, 4096, to, 0)), Errc::ok);
  ASSERT_EQ(a_->path->post_write(write_post(2, from, 0, 4096, to, 0)), Errc::ok);
  ASSERT_TRUE(harness_->run_until([&] { return a_->owner.completions.size() == 2; }, seconds(8)));
  EXPECT_EQ(a_->owner.completions[0].status, CompletionStatus::retry_exceeded);
  EXPECT_EQ(a_->path->cause(), CompletionStatus::retry_exceeded);
  EXPECT_EQ(a_->owner.completions[1].status, CompletionStatus::flushed);
  EXPECT_FALSE(a_->owner.last_error.what.empty());
}

TEST_P(PathContract, ConnectToNobodyFailsInTime) {
  harness_->cut();
  ASSERT_TRUE(a_->path->connect(b_->path->local_address()));
  ASSERT_TRUE(harness_->run_until([&] { return !a_->owner.states.empty(); }, seconds(10)));
  EXPECT_EQ(a_->owner.states[0], PathState::error);
  EXPECT_FALSE(a_->owner.last_error.what.empty());
}

TEST_P(PathContract, GarbageForAnAddressIsRefused) {
  std::vector<std::byte> bytes(fabric::path_address_max);
  Random random(3);
  for (size_t length = 0; length < bytes.size(); ++length) {
    for (auto& b : bytes) {
      b = static_cast<std::byte>(random.next());
    }
    EXPECT_FALSE(a_->path->connect(std::span(bytes).first(length)));
  }
  EXPECT_EQ(a_->path->state(), PathState::idle);
}

TEST_P(PathContract, DestroyingAPathWithWorkOutstandingIsQuiet) {
  connect();
  post_credits(*b_, 10);
  Buffer from(*a_, 1 << 20);
  Buffer to(*b_, 1 << 20);
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_EQ(a_->path->post_write(immediate_post(i, from, 1 << 20, to, i)), Errc::ok);
  }
  ASSERT_TRUE(run([&] { return !b_->owner.completions.empty(); })) << "nothing is under way";
  const size_t heard = a_->owner.completions.size();
  a_->path.reset();
  b_->path.reset();
  static_cast<void>(harness_->run_until([] { return false; }, milliseconds(20)));
  EXPECT_EQ(a_->owner.completions.size(), heard);
}

TEST_P(PathContract, BothDirectionsAtOnce) {
  connect();
  post_credits(*a_, 100);
  post_credits(*b_, 100);
  Buffer a_from(*a_, pattern(300000, 1));
  Buffer b_from(*b_, pattern(300000, 2));
  Buffer a_to(*a_, 300000);
  Buffer b_to(*b_, 300000);
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_EQ(a_->path->post_write(immediate_post(i, a_from, 300000, b_to, i)), Errc::ok);
    ASSERT_EQ(b_->path->post_write(immediate_post(i, b_from, 300000, a_to, i)), Errc::ok);
  }
  ASSERT_TRUE(run(
      [&] { return a_->owner.completions.size() == 40 && b_->owner.completions.size() == 40; }));
  EXPECT_EQ(a_from.bytes, b_to.bytes);
  EXPECT_EQ(b_from.bytes, a_to.bytes);
}

std::vector<Provider> providers() {
  std::vector<Provider> all{
      Provider{"memory", [] { return make_memory_harness(1, 0, 0, 0, 9000); }},
      Provider{"memory_mtu1500_lossy",
               [] { return make_memory_harness(2, 0.01, 0.01, 0.02, 1500); }},
      Provider{"memory_mtu9000_very_lossy",
               [] { return make_memory_harness(3, 0.05, 0.05, 0.05, 9000); }},
      Provider{"memory_fallback",
               [] { return make_memory_harness(6, 0.01, 0.01, 0.02, 1500, true); }},
      Provider{"sim_rc", [] { return make_sim_verbs_harness(4, 0, 0); }},
      Provider{"sim_rc_reordering", [] { return make_sim_verbs_harness(5, 0.05, 0.05); }},
      Provider{"udp", [] { return make_udp_harness(0, 0, 0, 0); }},
      Provider{"udp_mtu1500", [] { return make_udp_harness(0, 0, 0, 1500); }},
      Provider{"udp_lossy", [] { return make_udp_harness(0.05, 0.05, 0.05, 0); }}};
  for (const auto& [name, make] : relay_harnesses()) {
    all.push_back({name, make});
  }
  for (const auto& [name, make] : sealed_harnesses()) {
    all.push_back({name, make});
  }
  // With the far side in another machine: HOST:PORT where nha_contract_peer serves it.
  if (const char* peer = getenv("NHA_CONTRACT_PEER")) {
    const std::string text = peer;
    const size_t colon = text.rfind(':');
    const auto port = static_cast<uint16_t>(std::atoi(text.c_str() + colon + 1));
    for (const char* name : rdma_providers) {
      const std::string host = text.substr(0, colon);
      all.push_back({name, [=] { return make_remote_harness(name, host, port); }});
    }
    return all;
  }
  // In a guest of the lab, or where there is a NIC.
  for (const char* name : rdma_providers) {
    if (have_verbs()) {
      all.push_back({name, [name] {
                       return std::make_unique<PairHarness>(make_rdma_side(name, 0),
                                                            make_rdma_side(name, 1));
                     }});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, PathContract, ::testing::ValuesIn(providers()),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace nccl_ha::test
