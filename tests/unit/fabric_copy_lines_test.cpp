#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <numeric>
#include <span>
#include <vector>

#include "runtime/fabric/copy_lines.h"

namespace nccl_ha::fabric {
namespace {

TEST(CopyLines, CopiesEveryByteAndNoOther) {
  std::vector<uint8_t> numbers(3 * line_bytes + 2);
  std::iota(numbers.begin(), numbers.end(), uint8_t{1});
  const std::span<const std::byte> from = std::as_bytes(std::span(numbers));
  for (size_t bytes = 0; bytes <= 3 * line_bytes; ++bytes) {
    std::vector<std::byte> to(bytes + 2, std::byte{0xEE});
    copy_lines(to.data() + 1, from.data(), bytes);
    EXPECT_EQ(to.front(), std::byte{0xEE});
    EXPECT_EQ(to.back(), std::byte{0xEE});
    EXPECT_TRUE(std::equal(to.begin() + 1, to.end() - 1, from.begin())) << bytes;
  }
}

/// What two processes share; each round writes its number everywhere.
struct Shared {
  static constexpr size_t lines = 512;
  static constexpr size_t words = line_bytes / sizeof(uint64_t);
  using Line = std::array<std::atomic<uint64_t>, words>;
  std::array<Line, lines> to{};
  std::atomic<uint64_t> seen{0};  ///< the round that the reader has seen all of
};

constexpr uint64_t rounds = 1000;

void write_rounds(Shared& shared) {
  std::vector<uint64_t> from(Shared::lines * Shared::words);
  for (uint64_t round = 1; round <= rounds; ++round) {
    std::fill(from.begin(), from.end(), round);
    copy_lines(reinterpret_cast<std::byte*>(shared.to.data()),
               reinterpret_cast<const std::byte*>(from.data()), sizeof shared.to);
    while (shared.seen.load(std::memory_order_acquire) != round) {
      sched_yield();
    }
  }
}

/// The other side is another process, as a GPU is: no tool takes what they do for a race.
TEST(CopyLines, WhoSeesTheEndOfALineSeesAllOfIt) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Shared;
  const pid_t writer = fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) {
    write_rounds(shared);
    _exit(0);
  }
  uint64_t early = 0;
  for (uint64_t round = 1; round <= rounds; ++round) {
    // From the last line to the first: the reader waits for none of those before.
    for (size_t i = Shared::lines; i-- > 0;) {
      Shared::Line& line = shared.to[i];
      while (line.back().load(std::memory_order_acquire) != round) {
      }
      for (const auto& word : line) {
        early += word.load(std::memory_order_relaxed) != round ? 1 : 0;
      }
    }
    shared.seen.store(round, std::memory_order_release);
  }
  EXPECT_EQ(early, 0U);
  int status = -1;
  EXPECT_EQ(waitpid(writer, &status, 0), writer);
  EXPECT_EQ(status, 0);
  munmap(memory, sizeof(Shared));
}

}  // namespace
}  // namespace nccl_ha::fabric
