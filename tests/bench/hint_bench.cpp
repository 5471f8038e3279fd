// What the agent's hints cost a connection: one read for each message.  Prints one line per figure
// with its goal; ends with 1 when a goal is missed.
#include <algorithm>
#include <cstdio>

#include "runtime/base/clock.h"
#include "runtime/telemetry/hint_table.h"
#include "runtime/telemetry/hint_writer.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha {
namespace {

constexpr uint64_t flow = 4711;
constexpr int rounds = 5'000'000;
constexpr int repetitions = 7;
constexpr double goal_ns = 10;

/// The best of some repetitions: what else runs here is not the reader's.
template <class Read>
double ns_each(Read&& read) {
  SteadyClock clock;
  double best = 1e9;
  uint64_t sum = 0;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const Instant begin = clock.now();
    for (int i = 0; i < rounds; ++i) {
      sum += read(i);
    }
    best = std::min(best, static_cast<double>((clock.now() - begin).count()) / rounds);
  }
  // What nobody uses is not computed.
  return sum == 1 ? 0 : best;
}

int run() {
  const tests::TemporaryFolder folder;
  SteadyClock clock;
  const auto directory = AgentDirectory::make(folder.path());
  if (!directory) {
    std::printf("%s\n", directory.error().message().c_str());
    return 1;
  }
  auto writer = HintWriter::create(*directory, {4096, std::chrono::milliseconds(20)}, clock.now());
  const auto table = HintTable::open(folder.path(), 0);
  if (!writer || !table) {
    std::printf("cannot make a table\n");
    return 1;
  }
  for (uint32_t slot = 0; slot < 64; ++slot) {
    (*writer)->write(slot, flow, {slot, 0}, clock.now());
  }
  const Instant now = clock.now();
  const Duration silence = std::chrono::seconds(1000);
  const HintTable& hints = **table;
  const double one = ns_each([&](int i) {
    (void)i;
    return uint64_t{hints.read(5, flow, now, silence).hint.share};
  });
  const double many = ns_each([&](int i) {
    return uint64_t{hints.read(static_cast<uint32_t>(i) % 64, flow, now, silence).hint.share};
  });
  int missed = 0;
  for (const auto& [what, value] : {std::pair{"reading one flow's hint", one},
                                    std::pair{"reading those of 64 flows in turn", many}}) {
    const bool good = value <= goal_ns;
    missed += good ? 0 : 1;
    std::printf("%-40s %8.2f ns  goal at most %.0f  %s\n", what, value, goal_ns,
                good ? "ok" : "MISSED");
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace nccl_ha

int main() { return nccl_ha::run(); }
