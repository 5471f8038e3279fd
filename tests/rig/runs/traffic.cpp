#include "tests/rig/runs/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tests/rig/runs/content.h"

namespace nccl_ha::rig {

struct Traffic::Group {
  struct Part {
    uint32_t sent = 0;
    int tag = 0;
    std::vector<std::byte> source;
    std::vector<std::byte> target;
    std::optional<fabric::Registration> from;
    std::optional<fabric::Registration> to;
  };
  /// Small ones leave also without a place.
  static SendRequest* send(SendChannel& channel, const CtsEntry* place, const Part& part) {
    SendRequest* request = channel.submit_eager(place, part.tag, part.source.data(), part.sent);
    return request != nullptr || place == nullptr
               ? request
               : channel.submit(*place, part.source.data(), part.sent, part.from->local_key, true,
                                part.from->rail_local_keys);
  }

  uint64_t number = 0;
  std::vector<Part> parts;
  std::vector<size_t> order;  ///< in which the sender fills them
  ReceiveRequest* request = nullptr;
  ReceiveRequest* flush = nullptr;
  bool flushed = false;
  size_t sends_open = 0;
  bool received = false;
};

Traffic::Traffic(SimLink& link, const TransferPlan& plan)
    : link_(link),
      plan_(plan),
      sends_gpu_(plan.gpu &&
                 link.from().provider->traits(link.sender().attachment()).reaches_gpu_memory),
      // Half of all senders do not wait for receives, of which few are posted at a time then.
      ahead_(plan.released || plan.seed % 2 == 0 ? 0 : eager_slots),
      posted_max_(ahead_ == 0 ? receives_max : 1 + plan.seed / 2 % 3),
      shape_(plan.seed),
      random_(~plan.seed) {}

Traffic::~Traffic() {
  for (auto& group : groups_) {
    take_back(*group);
  }
}

void Traffic::take_back(Group& group) {
  for (Group::Part& part : group.parts) {
    if (part.from) {
      link_.take_back_send(*std::exchange(part.from, std::nullopt));
    }
    if (part.to) {
      link_.take_back_receive(*std::exchange(part.to, std::nullopt));
    }
    link_.world().rdma().counted.erase(reinterpret_cast<uint64_t>(part.target.data()));
  }
}

void Traffic::make_group() {
  auto made = std::make_unique<Group>();
  made->number = first_ + groups_.size();
  made->parts.resize(1 + shape_.below(shape_.chance(plan_.grouped) ? group_max : 1));
  for (size_t i = 0; i < made->parts.size(); ++i) {
    Group::Part& part = made->parts[i];
    // Tiny, empty and large ones; the receive may be larger than the send.
    const auto bytes = shape_.chance(0.1) ? 0U
                       : shape_.chance(plan_.large)
                           ? static_cast<uint32_t>(shape_.below(plan_.bytes_max))
                           : static_cast<uint32_t>(shape_.below(plan_.small_max));
    part.sent = bytes;
    part.tag = static_cast<int>(i);
    part.source.resize(bytes + 1);
    Content(plan_.seed, made->number, i).fill(std::span(part.source).first(bytes));
    part.target.assign(bytes + 1 + shape_.below(100), untouched);
    if (!plan_.memory_returns) {
      part.from = link_.register_send(part.source.data(), part.source.size(), sends_gpu_);
    }
    part.to = link_.register_receive(part.target.data(), part.target.size(), plan_.gpu);
    const auto target = reinterpret_cast<uint64_t>(part.target.data());
    link_.world().rdma().counted[target] = target + part.target.size();
    bytes_ += bytes;
    made->order.push_back(i);
  }
  made->sends_open = made->parts.size();
  if (shape_.chance(0.5)) {
    std::reverse(made->order.begin(), made->order.end());
  }
  groups_.push_back(std::move(made));
}

void Traffic::make_groups(uint64_t end) {
  while (first_ + groups_.size() < end) {
    make_group();
  }
}

void Traffic::post_receives() {
  const uint64_t released = plan_.released ? plan_.released() : plan_.groups;
  while (receives_posted_ < std::min<uint64_t>(released, plan_.groups) &&
         receives_posted_ - receives_done_ < posted_max_) {
    ReceiveRequest* slot = link_.receiver().acquire();
    if (slot == nullptr) {
      return;
    }
    make_groups(receives_posted_ + 1);
    Group& posted = group(receives_posted_++);
    slot->count = static_cast<uint8_t>(posted.parts.size());
    slot->polled = random_.chance(0.2);
    for (size_t i = 0; i < posted.parts.size(); ++i) {
      Group::Part& part = posted.parts[i];
      slot->buffers[i] = {part.target.data(), static_cast<uint32_t>(part.target.size()),
                          part.to->remote_key, part.tag, part.to->rail_remote_keys};
    }
    link_.receiver().submit(*slot);
    link_.receiver_driver().submit();
    posted.request = slot;
  }
}

/// Looks into memory first as callers in inline mode do, but not always.
const CtsEntry* Traffic::place_for(int tag) {
  SendChannel& channel = link_.sender();
  Driver& driver = link_.sender_driver();
  const CtsEntry* place = channel.match(tag);
  if (place == nullptr && driver.callers_turn()) {
    driver.wait_for_cts([&] { return channel.match(tag) != nullptr; });
    return channel.match(tag);
  }
  if (place == nullptr && driver.server() != nullptr && random_.chance(0.7) &&
      driver.server()->poll_cts()) {
    ++places_found_;
    place = channel.match(tag);
  }
  return place;
}

void Traffic::post_sends() {
  const uint64_t ahead = link_.receiver_lives() ? ahead_ : 0;
  while (send_group_ < std::min<uint64_t>(plan_.groups, receives_posted_ + ahead)) {
    make_groups(send_group_ + 1);
    Group& filled = group(send_group_);
    const size_t at = filled.order[send_position_];
    Group::Part& part = filled.parts[at];
    const CtsEntry* place = place_for(part.tag);
    if (!part.from) {
      part.from = link_.register_send(part.source.data(), part.source.size(), sends_gpu_);
    }
    SendRequest* request = Group::send(link_.sender(), place, part);
    if (request == nullptr && place == nullptr) {
      return;
    }
    if (request == nullptr) {
      link_.sender_driver().turn();
      return;
    }
    link_.sender_driver().submit();
    open_sends_.push_back({request, send_group_, at});
    if (++send_position_ == filled.order.size()) {
      send_position_ = 0;
      ++send_group_;
    }
  }
}

void Traffic::check_quiet(const Group& group) {
  for (const Group::Part& part : group.parts) {
    if (group.received && !is_untouched(part.target)) {
      wrong_ =
          fmt::format("group {}: a buffer was written after its receive was done", group.number);
    }
  }
}

/// True when the group's buffers are the caller's again.
bool Traffic::flush(Group& group) {
  const bool wanted =
      plan_.gpu || (plan_.flushes && link_.to().engine->worker(0).context().config().ib_flush != 0);
  if (!wanted || group.flushed ||
      !link_.to().provider->traits(link_.receiver().attachment()).placed_by_nic) {
    return true;
  }
  if (group.flush == nullptr) {
    const auto part = std::find_if(group.parts.begin(), group.parts.end(),
                                   [](const Group::Part& one) { return one.sent != 0; });
    if (part == group.parts.end()) {
      return true;
    }
    if (link_.receiver().phase() != Phase::ready ||
        (group.flush = link_.receiver().acquire_flush()) == nullptr) {
      return false;
    }
    group.flush->buffers[0] = {part->target.data(), 0, part->to->remote_key, 0};
    link_.receiver().submit(*group.flush);
    link_.receiver_driver().submit();
  }
  if (group.flush->state.load() != RequestState::done) {
    return false;
  }
  link_.receiver().release(*group.flush);
  group.flushed = true;
  return true;
}

bool Traffic::take_received(Group& group) {
  if (group.request->state.load() != RequestState::done || !flush(group)) {
    return false;
  }
  for (size_t i = 0; i < group.parts.size(); ++i) {
    Group::Part& part = group.parts[i];
    if (group.request->bytes[i] != part.sent) {
      wrong_ = fmt::format("group {} position {}: {} bytes reported, {} sent", group.number, i,
                           group.request->bytes[i], part.sent);
    }
    const std::span<const std::byte> target(part.target);
    const auto wrong = Content(plan_.seed, group.number, i).first_wrong(target.first(part.sent));
    if (wrong || !is_untouched(target.subspan(part.sent))) {
      wrong_ = fmt::format("group {} position {}: wrong byte at {} of {}", group.number, i,
                           wrong.value_or(part.sent), part.sent);
    }
    if (plan_.memory_returns) {
      link_.take_back_receive(*std::exchange(part.to, std::nullopt));
    }
    // It is ours again: nothing may touch it any more.
    std::fill(part.target.begin(), part.target.end(), untouched);
  }
  link_.receiver().release(*group.request);
  group.received = true;
  return true;
}

void Traffic::test_receives() {
  while (receives_done_ < receives_posted_) {
    Group& oldest = group(receives_done_);
    if (oldest.request->state.load() == RequestState::pending) {
      link_.receiver_driver().wait_for(oldest.request->state);
    }
    if (!take_received(oldest)) {
      return;
    }
    ++receives_done_;
  }
}

void Traffic::test_sends() {
  if (!open_sends_.empty() && open_sends_.front().request->state.load() == RequestState::pending) {
    link_.sender_driver().wait_for(open_sends_.front().request->state);
  }
  std::erase_if(open_sends_, [&](const OpenSend& one) {
    if (one.request->state.load() != RequestState::done) {
      return false;
    }
    link_.sender().release(*one.request);
    Group& sent = group(one.group);
    Group::Part& part = sent.parts[one.part];
    if (plan_.memory_returns) {
      link_.take_back_send(*std::exchange(part.from, std::nullopt));
    }
    // The caller computes on: whoever still sends from here sends something else.
    std::fill(part.source.begin(), part.source.end(), std::byte{0x5A});
    --sent.sends_open;
    return true;
  });
}

/// Groups that were done long ago are looked at once more.
void Traffic::retire() {
  while (groups_.size() > plan_.late_write_window && groups_.front()->received &&
         groups_.front()->sends_open == 0) {
    check_quiet(*groups_.front());
    take_back(*groups_.front());
    groups_.pop_front();
    ++first_;
  }
}

void Traffic::close_what_is_done() {
  if (plan_.closes && all_sent()) {
    link_.close_sender();
  }
  if (plan_.closes && all_received()) {
    link_.close_receiver();
  }
}

/// Nobody who lives has anything more to hear.
bool Traffic::ended() const {
  return (!link_.sender_lives() || link_.sender().phase() == Phase::failed) &&
         (!link_.receiver_lives() || link_.receiver().phase() == Phase::failed);
}

/// A side may fail when it has nothing open any more: its peer has closed.
void Traffic::judge_failures() {
  const bool sender =
      link_.sender_lives() && link_.sender().phase() == Phase::failed && !all_sent();
  const bool receiver =
      link_.receiver_lives() && link_.receiver().phase() == Phase::failed && !all_received();
  if ((sender || receiver) && !plan_.may_end && wrong_.empty()) {
    wrong_ = fmt::format("failed: {} (the {} had {} open)", link_.error(),
                         sender ? "sender" : "receiver",
                         sender ? open_sends_.size() : receives_posted_ - receives_done_);
  }
}

bool Traffic::step() {
  if (plan_.each_round) {
    plan_.each_round();
  }
  if (!wrong_.empty()) {
    return true;
  }
  if (link_.receiver_calls()) {
    if (link_.receiver().phase() == Phase::ready) {
      post_receives();
    }
    test_receives();
  }
  if (link_.sender_calls()) {
    if (link_.sender().phase() == Phase::ready) {
      post_sends();
    }
    test_sends();
  }
  judge_failures();
  close_what_is_done();
  retire();
  return all_done() || !wrong_.empty() || (plan_.may_end && ended());
}

std::string Traffic::outcome() {
  if (wrong_.empty() && !all_done() && !plan_.may_end) {
    wrong_ = fmt::format("unfinished: {} of {} groups received, {} sends open", receives_done_,
                         plan_.groups, open_sends_.size());
  }
  for (const auto& group : groups_) {
    if (wrong_.empty()) {
      check_quiet(*group);
    }
  }
  return wrong_;
}

}  // namespace nccl_ha::rig
