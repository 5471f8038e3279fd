// What the choice of a rail costs for each chunk: a decision, and what is learnt of its post and of
// its acknowledgement.  The time of day, which the caller reads, is not in it.
//
// usage: rail_policy
#include "ha/rail_policy.h"

#include <time.h>

#include <array>
#include <cstdint>
#include <cstdio>

#include "ha/rail_scheduler.h"
#include "runtime/base/instant.h"

namespace {

using nccl_ha::Duration;
using nccl_ha::Instant;
using nccl_ha::ha::RailScheduler;

constexpr uint32_t chunk = 32768;
constexpr int chunks = 20'000'000;

/// Processor time, in nanoseconds: the host may be busy with others.
double spent_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

/// Nanoseconds per chunk; two rails at 50 and 25 GB/s that have work all the time.
double measure(size_t rails) {
  RailScheduler scheduler;
  std::array<RailScheduler::Load, nccl_ha::ha::device_rails_max> loads{};
  for (size_t i = 0; i < rails; ++i) {
    scheduler.begin(i, 25'000'000'000);
    loads[i].serves = true;
  }
  const double begin = spent_ns();
  Instant now{std::chrono::seconds(1)};
  uint64_t taken = 0;
  for (int i = 0; i < chunks; ++i) {
    now += Duration(650);
    const auto rail = scheduler.pick(std::span(loads).first(rails), chunk, 1 << 20, now);
    if (!rail) {
      continue;
    }
    ++taken;
    scheduler.estimate(*rail).on_posted(chunk, loads[*rail].open, now);
    scheduler.estimate(*rail).on_delivered(chunk, now);
    loads[*rail].open = (loads[*rail].open + chunk) % (8 * chunk);
  }
  const double took = spent_ns() - begin;
  return taken == 0 ? -1 : took / chunks;
}

double measure_hint() {
  nccl_ha::ha::ShareAccumulator shares;
  nccl_ha::ha::RailScheduler scheduler;
  const nccl_ha::Instant now{std::chrono::seconds(1)};
  const double begin = spent_ns();
  uint64_t taken = 0;
  for (int i = 0; i < chunks; ++i) {
    const auto parts = nccl_ha::ha::supplementary_parts({1 << 20, nccl_ha::ha::RailMode::hinted,
                                                         nccl_ha::ha::PathClass::inter_island,
                                                         65536, static_cast<uint32_t>(i) & 1023U});
    if (parts && scheduler.has_room(shares.next(*parts, chunk) ? 1 : 0, chunk, chunk, now)) {
      shares.take(*parts, chunk);
      ++taken;
    }
  }
  const double took = spent_ns() - begin;
  return taken == 0 ? -1 : took / chunks;
}

}  // namespace

int main() {
  constexpr double goal = 20;
  const double two = measure(2);
  const double four = measure(4);
  const double hint = measure_hint();
  std::printf("two rails  %5.1f ns per chunk, at most %.0f\n", two, goal);
  std::printf("four rails %5.1f ns per chunk\n", four);
  std::printf("by hint    %5.1f ns per chunk, at most %.0f\n", hint, goal);
  return two > 0 && two <= goal && hint > 0 && hint <= goal ? 0 : 1;
}
