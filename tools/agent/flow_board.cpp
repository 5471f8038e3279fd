#include "tools/agent/flow_board.h"

#include <algorithm>
#include <utility>

#include "ha/nic_load.h"
#include "runtime/base/check.h"

namespace nccl_ha::tools {
namespace {

/// Measurements in a row of the host's own NICs that begin or end steering by them alone.
constexpr unsigned local_turns_least = 2;

bool concerns(const ha::HostAddress& named, const ha::HostAddress& address) {
  return named.family == 0 || named == address;
}

Hint hint_of(const ha::SharePolicy::Decision& decision) {
  return {decision.share, (decision.backpressure ? hint_layout::backpressure : 0U) |
                              (decision.untold ? hint_layout::untold : 0U)};
}

}  // namespace

FlowBoard::FlowBoard(std::unique_ptr<HintWriter> writer, uint32_t connections_per_client,
                     const ha::SharePolicy::Options& policy,
                     std::shared_ptr<const HintTable> previous)
    : writer_(std::move(writer)),
      registry_({writer_->slots(), connections_per_client}),
      policy_(policy),
      previous_(std::move(previous)),
      flows_(writer_->slots()) {}

Result<FlowPlace> FlowBoard::enter(ha::FlowRegistry::Client client, uint64_t connection,
                                   const FlowAnnouncement& announcement, Instant now,
                                   ha::FlowRegistry::User user) {
  const auto entered = registry_.enter(client, connection, announcement.flow, user);
  if (!entered) {
    ++counts_.refused;
    return entered.error();
  }
  ++counts_.entered;
  if (entered->first) {
    begin(entered->slot, announcement, now);
  }
  return FlowPlace{entered->slot, ha::flow_hash(announcement.flow), writer_->generation()};
}

void FlowBoard::begin(uint32_t slot, const FlowAnnouncement& announcement, Instant now) {
  FlowState state{announcement.flow,
                  ha::SharePolicy(policy_),
                  {},
                  announcement.source_host,
                  announcement.destination_host,
                  announcement.devices,
                  now};
  const auto before =
      previous_ ? previous_->last_hint_of(ha::flow_hash(announcement.flow)) : std::nullopt;
  if (before && (before->flags & hint_layout::untold) == 0) {
    // Its connections have split like that up to now.
    state.policy.begin_with(before->share, now);
  }
  flows_[slot] = std::move(state);
  flows_[slot]->decision = flows_[slot]->policy.decide(now);
  write(slot, now);
  if (observer_ != nullptr) {
    observer_->on_flow_begun(announcement.flow);
  }
}

void FlowBoard::end(const ha::FlowRegistry::Left& left, Instant now) {
  if (!left.last) {
    return;
  }
  writer_->clear(left.slot, now);
  flows_[left.slot].reset();
  if (observer_ != nullptr) {
    observer_->on_flow_ended(left.flow);
  }
}

Result<void> FlowBoard::leave(ha::FlowRegistry::Client client, uint64_t connection, Instant now) {
  const auto left = registry_.leave(client, connection);
  if (!left) {
    return left.error();
  }
  end(*left, now);
  return {};
}

void FlowBoard::drop(ha::FlowRegistry::Client client, Instant now) {
  for (const ha::FlowRegistry::Left& left : registry_.drop(client)) {
    end(left, now);
  }
}

void FlowBoard::tell(uint32_t slot, const CongestionEntry& entry, Instant now) {
  FlowState& state = *flows_[slot];
  const LocalEnd& local = local_[entry.rail];
  // A path's links are taken for as fast as the host's own.
  const uint8_t queue = ha::queue_level(entry.queue_bytes.value_or(0), local.mbps);
  state.policy.on_level(entry.rail, std::max({entry.level, queue, local.level}), now);
  state.told_at[entry.rail] = now;
  ++state.told;
  ++counts_.told;
  decide(slot, now);
}

void FlowBoard::tell_all(const CongestionEntry& entry, const Named& named, Instant now) {
  bool any = false;
  for (const auto& [flow, slot] : registry_.all()) {
    if (!concerns(entry.flow.source, flow.source) ||
        !concerns(entry.flow.destination, flow.destination)) {
      continue;
    }
    any = true;
    if (std::find(named.begin(), named.end(), std::pair{slot, entry.rail}) == named.end()) {
      tell(slot, entry, now);
    }
  }
  counts_.unmatched += any ? 0 : 1;
}

void FlowBoard::on_congestion(std::span<const CongestionEntry> entries, Instant now) {
  const auto names_a_flow = [](const CongestionEntry& entry) {
    return entry.flow.source.family != 0 && entry.flow.destination.family != 0;
  };
  Named named;
  for (const CongestionEntry& entry : entries) {
    if (!names_a_flow(entry)) {
      continue;
    }
    if (const uint32_t* slot = registry_.slot_of(entry.flow)) {
      tell(*slot, entry, now);
      named.emplace_back(*slot, entry.rail);
    } else {
      ++counts_.unmatched;
    }
  }
  for (const CongestionEntry& entry : entries) {
    if (!names_a_flow(entry)) {
      tell_all(entry, named, now);
    }
  }
}

void FlowBoard::on_local(const LocalEnds& ends, Instant now) {
  local_ = ends;
  // A link that is full says nothing: transfers fill it.  Nor does one measurement alone.
  const bool congested = std::any_of(ends.begin(), ends.end(), [](const LocalEnd& end) {
    return end.level > ha::level_full_link;
  });
  local_turns_ = congested != local_steers_ ? local_turns_ + 1 : 0;
  const bool ends_now = local_steers_ && local_turns_ >= local_turns_least;
  if (local_turns_ >= local_turns_least) {
    local_steers_ = congested;
    local_turns_ = 0;
  }
  if (!local_steers_ && !ends_now) {
    return;
  }
  for (const auto& [flow, slot] : registry_.all()) {
    FlowState& state = *flows_[slot];
    for (size_t rail = 0; rail < ends.size(); ++rail) {
      if (!state.told_at[rail] || now - *state.told_at[rail] >= policy_.fresh_for) {
        state.policy.on_level(rail, ends_now ? uint8_t{0} : ends[rail].level, now);
      }
    }
    decide(slot, now);
  }
}

void FlowBoard::decide(uint32_t slot, Instant now) {
  FlowState& state = *flows_[slot];
  const ha::SharePolicy::Decision next = state.policy.decide(now);
  if (next == state.decision) {
    return;
  }
  counts_.backpressure += next.backpressure && !state.decision.backpressure ? 1 : 0;
  state.decision = next;
  write(slot, now);
}

void FlowBoard::write(uint32_t slot, Instant now) {
  const FlowState& state = *flows_[slot];
  writer_->write(slot, ha::flow_hash(state.flow), hint_of(state.decision), now);
  ++counts_.hints;
}

void FlowBoard::tick(Instant now) {
  for (const auto& [flow, slot] : registry_.all()) {
    const ha::SharePolicy::Decision& decision = flows_[slot]->decision;
    // Of most flows of most hosts nobody has said anything.
    if (!decision.untold || decision.share != ha::SharePolicy::whole / 2) {
      decide(slot, now);
    }
  }
}

void FlowBoard::set_policy(const ha::SharePolicy::Options& policy) {
  policy_ = policy;
  for (const auto& [flow, slot] : registry_.all()) {
    flows_[slot]->policy.set_options(policy);
  }
}

}  // namespace nccl_ha::tools
