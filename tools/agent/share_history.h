// Shares of flows over the last minutes, for those who look.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "ha/flow.h"
#include "tools/agent/flow_board.h"

namespace nccl_ha::tools {

/// A sample a second; of so many flows as a person may look at.
class ShareHistory {
 public:
  static constexpr size_t samples_max = 300;
  static constexpr size_t flows_max = 64;

  void sample(const FlowBoard& board) {
    const auto& all = board.registry().all();
    std::erase_if(samples_, [&](const auto& entry) { return !all.contains(entry.first); });
    for (const auto& [flow, slot] : all) {
      if (samples_.size() == flows_max && !samples_.contains(flow)) {
        continue;
      }
      auto& samples = samples_[flow];
      samples.push_back(static_cast<uint16_t>(board.state(slot).decision.share));
      if (samples.size() > samples_max) {
        samples.pop_front();
      }
    }
  }
  /// Oldest first; nullptr: there are none of it.
  const std::deque<uint16_t>* of(const ha::Flow& flow) const {
    const auto found = samples_.find(flow);
    return found == samples_.end() ? nullptr : &found->second;
  }

 private:
  std::map<ha::Flow, std::deque<uint16_t>> samples_;
};

}  // namespace nccl_ha::tools
