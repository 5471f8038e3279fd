#include "tests/rig/runs/coverage.h"

#include <fmt/format.h>

#include <array>

#include "ha/lane_coverage.h"

namespace nccl_ha::rig {
namespace {

using ha::LaneCoverage;

constexpr std::array<const char*, LaneCoverage::sender_states> sender_states{"opening", "usable",
                                                                             "fencing", "down"};
constexpr std::array<const char*, LaneCoverage::sender_events> sender_events{
    "ready",  "failed", "suspect",  "old_suspect", "drained",    "unproven",
    "proven", "fenced", "reopened", "rebuilt",     "old_rebuilt"};
constexpr std::array<const char*, LaneCoverage::receiver_states> receiver_states{
    "opening", "usable", "suspected", "fencing", "fenced"};
constexpr std::array<const char*, LaneCoverage::receiver_events> receiver_events{
    "ready", "failed", "drained", "down", "rebuild"};

/// Control messages come in order, so that a word about an epoch comes before that lane's fence is
/// told, which comes before the next epoch; and a path that was taken down says nothing more.  The
/// last receive is the last that comes back, so that a fenced receiver hears of it no more.  A path
/// that fails before the peer has heard of it drains while its lane is down.  What is missing here
/// can happen only with a peer that breaks the protocol (tests/unit/ha_lane_test).
constexpr const char* possible[] = {
    "sender opening ready",      "sender opening failed",      "sender opening suspect",
    "sender opening drained",    "sender opening rebuilt",     "sender usable failed",
    "sender usable suspect",     "sender fencing failed",      "sender fencing suspect",
    "sender fencing drained",    "sender fencing unproven",    "sender fencing proven",
    "sender fencing fenced",     "sender fencing rebuilt",     "sender down failed",
    "sender down drained",       "sender down proven",         "sender down reopened",
    "receiver opening ready",    "receiver opening failed",    "receiver opening drained",
    "receiver opening down",     "receiver usable failed",     "receiver usable down",
    "receiver suspected failed", "receiver suspected drained", "receiver suspected down",
    "receiver fencing failed",   "receiver fencing drained",   "receiver fenced ready",
    "receiver fenced failed",    "receiver fenced rebuild",
};

template <class Counts, class States, class Events, class Tell>
void each_pair(const Counts& counts, const States& states, const Events& events, Tell&& tell) {
  for (size_t state = 0; state < states.size(); ++state) {
    for (size_t event = 0; event < events.size(); ++event) {
      tell(states[state], events[event], counts[state][event].load());
    }
  }
}

}  // namespace

std::vector<std::string> lane_pairs_seen() {
  std::vector<std::string> seen;
  const LaneCoverage& all = ha::lane_coverage();
  each_pair(all.sender, sender_states, sender_events, [&](auto state, auto event, uint64_t count) {
    if (count != 0) {
      seen.push_back(fmt::format("sender {} {}", state, event));
    }
  });
  each_pair(all.receiver, receiver_states, receiver_events,
            [&](auto state, auto event, uint64_t count) {
              if (count != 0) {
                seen.push_back(fmt::format("receiver {} {}", state, event));
              }
            });
  return seen;
}

std::vector<std::string> lane_pairs_possible() {
  return {std::begin(possible), std::end(possible)};
}

std::string lane_coverage_text() {
  std::string text;
  const LaneCoverage& all = ha::lane_coverage();
  const auto add = [&](const char* side, const auto& counts, const auto& states,
                       const auto& events) {
    for (size_t state = 0; state < states.size(); ++state) {
      text += fmt::format("  {:<8} {:<8}", side, states[state]);
      for (size_t event = 0; event < events.size(); ++event) {
        if (const uint64_t count = counts[state][event].load(); count != 0) {
          text += fmt::format(" {} {}", events[event], count);
        }
      }
      text += "\n";
    }
  };
  add("sender", all.sender, sender_states, sender_events);
  add("receiver", all.receiver, receiver_states, receiver_events);
  return fmt::format("lanes       {} of {} pairs of state and event that can be were seen\n{}",
                     lane_pairs_seen().size(), std::size(possible), text);
}

}  // namespace nccl_ha::rig
