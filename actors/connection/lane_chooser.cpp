#include "actors/connection/lane_chooser.h"

#include <algorithm>

#include "actors/connection_message.h"
#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

constexpr Duration look_interval = std::chrono::milliseconds(20);

}  // namespace

void LaneChooser::begin(std::shared_ptr<ha::HintSource> hints) {
  hints_ = std::move(hints);
  measures_ = state_.rails.rails != 0;
  const Config& config = state_.context->config();
  meters_ = state_.backup && paths_.size() != paths_.primaries() && config.slow_factor != 0;
  for (size_t rail = 0; rail < state_.devices.count && rail <= state_.rails.rails; ++rail) {
    scheduler_.begin(rail, promised(rail));
  }
  stragglers_ = ha::Stragglers({.factor = static_cast<double>(config.straggler_factor),
                                .time = std::chrono::milliseconds(config.straggler_ms),
                                .fence = config.fence_stragglers,
                                .after = std::chrono::milliseconds(config.failback_ms)});
}

uint64_t LaneChooser::promised(size_t rail) const {
  const auto& device = state_.provider.devices()[state_.devices.devices[rail]];
  return static_cast<uint64_t>(std::max<int64_t>(device.speed_mbps, 0)) * 125'000;
}

bool LaneChooser::serve(std::span<const ha::ServingSet::Share> shares) {
  if (std::ranges::equal(shares, std::span(shares_).first(share_count_))) {
    return false;
  }
  share_count_ = shares.size();
  weights_.fill(0);
  spreads_ = false;
  uint64_t open = 0;
  for (size_t i = 0; i < share_count_; ++i) {
    shares_[i] = shares[i];
    open += paths_.lane(shares[i].lane).bytes_open;
    weights_[shares[i].lane] = shares[i].weight;
    spreads_ = spreads_ || paths_.lane(shares[i].lane).rail != paths_.lane(shares[0].lane).rail;
  }
  for (size_t lane = 0; lane < paths_.size(); ++lane) {
    paths_.lane(lane).counters->weight.set(weights_[lane]);
  }
  rotation_.begin(shares);
  meter_.begin(open, state_.context->now());
  return true;
}

LaneChooser::Rails LaneChooser::rails() const {
  Rails rails;
  for (size_t i = 0; i < share_count_; ++i) {
    const Lane& lane = paths_.lane(shares_[i].lane);
    if (lane.usable) {
      rails[lane.rail].serves = true;
      rails[lane.rail].open += lane.bytes_open;
    }
  }
  return rails;
}

uint64_t LaneChooser::open_on(uint8_t rail) const {
  uint64_t open = 0;
  for (const Lane& lane : paths_.lanes()) {
    open += lane.rail == rail && lane.usable && !lane.shadow ? lane.bytes_open : 0;
  }
  return open;
}

void LaneChooser::cut(SendRequest& request) {
  if (share_count_ < 2 || request.size < state_.context->config().ib_split_threshold) {
    request.split.whole(request.size);
  } else if (spreads_) {
    request.split.even(request.size,
                       scheduler_.chunk_bytes(rails(), request.size, state_.context->now()));
  } else {
    request.split.by_weight(request.size, std::span(weights_).first(paths_.size()));
  }
}

size_t LaneChooser::lane_among(const SendRequest& request, uint32_t chunk) {
  if (spreads_) {
    return spread(request.size, request.split.begin(chunk), request.split.bytes(chunk));
  }
  if (request.split.count() > 1) {
    const size_t lane = request.split.path(chunk);
    if (lane < weights_.size() && weights_[lane] != 0) [[likely]] {
      return lane;
    }
  }
  return in_turn();
}

std::optional<uint32_t> LaneChooser::hinted_parts(uint32_t size) {
  const ha::RailMode mode = state_.terms.mode;
  if (mode == ha::RailMode::balanced) {
    return std::nullopt;
  }
  return ha::supplementary_parts({size, mode, state_.rails.path_class,
                                  static_cast<uint64_t>(state_.context->config().mpib_direct_bytes),
                                  hints_ ? hints_->parts(state_.context->now()) : std::nullopt});
}

/// A chunk of so many bytes, which begins there in a message of that size.
size_t LaneChooser::spread(uint32_t size, uint32_t begin, uint32_t bytes) {
  const Rails all = rails();
  if (const auto parts = hinted_parts(size)) {
    if (*parts != parts_noted_) {
      parts_noted_ = *parts;
      state_.note(TraceEvent::hint, *parts, 1);
    }
    const size_t wanted = accumulator_.next(*parts, bytes) ? 1 : 0;
    const size_t rail = all[wanted].serves ? wanted : 1 - wanted;
    if (!scheduler_.has_room(rail, all[rail].open, bytes, state_.context->now())) {
      return none;
    }
    accumulator_.take(*parts, bytes);
    return lane_on(rail);
  }
  // What else the caller has given is probably like this.
  const uint64_t others = std::max<size_t>(channel_.open_about(), 1) - 1;
  const uint64_t waiting = uint64_t{size} - begin + others * size;
  const auto rail = scheduler_.pick(all, bytes, waiting, state_.context->now());
  return rail ? lane_on(*rail) : none;
}

size_t LaneChooser::lane_on(size_t rail) const {
  size_t best = none;
  for (size_t i = 0; i < share_count_; ++i) {
    const Lane& lane = paths_.lane(shares_[i].lane);
    if (lane.usable && lane.rail == rail &&
        (best == none || lane.bytes_open < paths_.lane(best).bytes_open)) {
      best = shares_[i].lane;
    }
  }
  return best;
}

size_t LaneChooser::any_usable() {
  for (size_t tried = 0; tried < share_count_; ++tried) {
    const size_t lane = in_turn();
    if (paths_.lane(lane).usable) {
      return lane;
    }
  }
  return none;
}

size_t LaneChooser::on_another_rail(size_t not_on) const {
  const uint8_t rail = paths_.lane(not_on).rail;
  for (size_t i = 0; i < share_count_; ++i) {
    const Lane& lane = paths_.lane(shares_[i].lane);
    if (lane.usable && !lane.rejected && lane.rail != rail) {
      return shares_[i].lane;
    }
  }
  return none;
}

void LaneChooser::measure_posted(const Lane& lane, uint64_t bytes) {
  if (meters_ && weights_[paths_.at(lane)] != 0) {
    meter_.on_posted(bytes, state_.context->about_now());
  }
  if (measures_ && !lane.shadow) {
    scheduler_.estimate(lane.rail).on_posted(bytes, open_on(lane.rail), state_.context->now());
  }
}

void LaneChooser::measure_delivered(const Lane& lane, uint64_t bytes, bool good) {
  if (meters_ && weights_[paths_.at(lane)] != 0) {
    if (good) {
      meter_.on_delivered(bytes, state_.context->about_now());
    } else {
      meter_.on_lost(bytes, state_.context->about_now());
    }
  }
  if (!measures_ || lane.shadow) {
    return;
  }
  const Instant now = state_.context->now();
  if (good) {
    scheduler_.estimate(lane.rail).on_delivered(bytes, now);
  } else {
    scheduler_.estimate(lane.rail).on_lost(now);
  }
  if (spreads_ && now >= look_at_) [[unlikely]] {
    look_at_ = now + look_interval;
    look_for_stragglers(now);
  }
}

void LaneChooser::look_for_stragglers(Instant now) {
  const Rails serving = rails();
  std::array<ha::Stragglers::Seen, ha::device_rails_max> seen{};
  const size_t count = state_.rails.rails + size_t{1};
  for (size_t rail = 0; rail < count; ++rail) {
    const ha::RailEstimate& estimate = scheduler_.estimate(rail);
    seen[rail] = {serving[rail].serves,
                  estimate.measured() ? estimate.measured_ns_per_byte(serving[rail].open, now) : 0,
                  promised(rail), estimate.rates_seen()};
  }
  const auto all = std::span(seen).first(count);
  for (size_t rail = 0; rail < count; ++rail) {
    const auto change = stragglers_.look(rail, all, now);
    if (change == ha::Stragglers::Change::slow) {
      tell_straggler(rail, ha::Stragglers::behind_best(rail, all));
    } else if (change == ha::Stragglers::Change::well) {
      NHA_LOG_WARN("rail {} of the connection to {} is no longer slow", rail,
                   state_.owner.peer_text());
    }
  }
}

void LaneChooser::tell_straggler(size_t rail, double behind) {
  const bool fenced = stragglers_.fenced(rail);
  state_.counters->stragglers.add();
  state_.counters->stragglers_fenced.add(fenced ? 1 : 0);
  state_.note(TraceEvent::rail_slow, rail, fenced ? 1 : 0);
  NHA_LOG_WARN(
      "rail {} ({}) of the connection to {} is slow: for {} ms it has delivered {:.1f} times less "
      "than it should beside the best one{}",
      rail, state_.provider.devices()[state_.devices.devices[rail]].name, state_.owner.peer_text(),
      state_.context->config().straggler_ms, behind,
      fenced ? ", and is fenced off" : "; look at its cable, port and switch");
  if (fenced) {
    Message soon{};  // its lanes fail after this turn
    soon.to = state_.id;
    soon.kind = static_cast<uint32_t>(ConnectionMessage::slow_rail);
    soon.arg = static_cast<uint32_t>(rail);
    state_.context->send_self(soon);
  }
}

void LaneChooser::release(size_t rail) {
  stragglers_.release(rail, state_.context->now());
  scheduler_.begin(rail, promised(rail));
}

}  // namespace nccl_ha
