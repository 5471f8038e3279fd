#include "tests/rig/runs/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tests/rig/runs/content.h"

namespace nccl_ha::rig {

using Table = SimPlugin::Table;

struct Traffic::Group {
  struct Part {
    uint32_t sent = 0;
    int tag = 0;
    std::vector<std::byte> source;
    std::vector<std::byte> target;
    const fabric::Registration* from = nullptr;
    const fabric::Registration* to = nullptr;
  };
  /// As NCCL gives them.
  struct Arrays {
    explicit Arrays(std::vector<Part>& parts) : count(static_cast<int>(parts.size())) {
      for (size_t i = 0; i < parts.size(); ++i) {
        data[i] = parts[i].target.data();
        sizes[i] = parts[i].target.size();
        tags[i] = parts[i].tag;
        memory[i] = const_cast<fabric::Registration*>(parts[i].to);
      }
    }
    int count;
    std::array<void*, group_max> data{};
    std::array<size_t, group_max> sizes{};
    std::array<int, group_max> tags{};
    std::array<void*, group_max> memory{};
  };

  uint64_t number = 0;
  std::vector<Part> parts;
  std::vector<size_t> order;  ///< in which the sender fills them
  void* request = nullptr;
  std::array<int, group_max> sizes{};  ///< as test() reported them
  bool arrived = false;
  void* flush = nullptr;
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
    const bool from = part.from == nullptr || link_.take_back_send(std::exchange(part.from, {}));
    const bool to = part.to == nullptr || link_.take_back_receive(std::exchange(part.to, {}));
    if (!(from && to) && wrong_.empty()) {
      wrong_ = fmt::format("group {}: deregMr() does not know its memory", group.number);
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
    make_groups(receives_posted_ + 1);
    Group& next = group(receives_posted_);
    for (Group::Part& part : next.parts) {
      if (part.to == nullptr) {
        part.to = link_.register_receive(part.target.data(), part.target.size(), plan_.gpu);
      }
    }
    Group::Arrays all(next.parts);
    auto* request = reinterpret_cast<void*>(random_.chance(0.2) ? abi::optional_receive_completion
                                                                : uintptr_t{0});
    const auto result = link_.to_plugin().call(&Table::irecv, link_.receive_comm(), all.count,
                                               all.data.data(), all.sizes.data(), all.tags.data(),
                                               all.memory.data(), nullptr, &request);
    if (!is_fine("irecv", result, link_.receiver()) || request == nullptr) {
      return;
    }
    next.request = request;
    ++receives_posted_;
  }
}

/// As callers do who turn the worker; where none does, by chance.
void Traffic::look_into_memory(int tag) {
  Driver& driver = link_.sender_driver();
  if (!driver.callers_turn() && driver.server() != nullptr &&
      link_.sender().match(tag) == nullptr && random_.chance(0.7) && driver.server()->poll_cts()) {
    ++places_found_;
  }
}

void Traffic::post_sends() {
  const uint64_t ahead = link_.receiver_lives() ? ahead_ : 0;
  while (send_group_ < std::min<uint64_t>(plan_.groups, receives_posted_ + ahead)) {
    make_groups(send_group_ + 1);
    Group& filled = group(send_group_);
    const size_t at = filled.order[send_position_];
    Group::Part& part = filled.parts[at];
    look_into_memory(part.tag);
    if (part.from == nullptr) {
      part.from = link_.register_send(part.source.data(), part.source.size(), sends_gpu_);
    }
    void* request = nullptr;
    const auto result = link_.from_plugin().call(
        &Table::isend, link_.send_comm(), part.source.data(), size_t{part.sent}, part.tag,
        const_cast<fabric::Registration*>(part.from), nullptr, &request);
    if (!is_fine("isend", result, link_.sender()) || request == nullptr) {
      return;
    }
    open_sends_.push_back({request, send_group_, at});
    if (++send_position_ == filled.order.size()) {
      send_position_ = 0;
      ++send_group_;
    }
  }
}

/// Only what is wrong with a connection is an error.
bool Traffic::is_fine(const char* call, abi::NcclResult result, const Channel& side) {
  const bool fine = result == abi::NcclResult::success;
  if (!fine && side.phase() != Phase::failed && wrong_.empty()) {
    wrong_ = fmt::format("{}() says {} of a connection that has not failed", call,
                         static_cast<int>(result));
  }
  return fine;
}

bool Traffic::is_done(bool sends, void* request, int* sizes) {
  int done = 0;
  SimPlugin& plugin = sends ? link_.from_plugin() : link_.to_plugin();
  const auto result = plugin.call(&Table::test, request, &done, sizes);
  return is_fine("test", result,
                 sends ? static_cast<const Channel&>(link_.sender()) : link_.receiver()) &&
         done != 0;
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
  if (group.flushed || !(plan_.gpu || plan_.flushes)) {
    return true;
  }
  if (group.flush == nullptr) {
    Group::Arrays all(group.parts);
    const auto result =
        link_.to_plugin().call(&Table::iflush, link_.receive_comm(), all.count, all.data.data(),
                               group.sizes.data(), all.memory.data(), &group.flush);
    if (!is_fine("iflush", result, link_.receiver())) {
      return false;
    }
  }
  // Null: there is nothing to wait for.
  group.flushed = group.flush == nullptr || is_done(false, group.flush, nullptr);
  return group.flushed;
}

bool Traffic::take_received(Group& group) {
  group.arrived = group.arrived || is_done(false, group.request, group.sizes.data());
  if (!group.arrived || !flush(group)) {
    return false;
  }
  for (size_t i = 0; i < group.parts.size(); ++i) {
    Group::Part& part = group.parts[i];
    if (group.sizes[i] != static_cast<int>(part.sent)) {
      wrong_ = fmt::format("group {} position {}: {} bytes reported, {} sent", group.number, i,
                           group.sizes[i], part.sent);
    }
    const std::span<const std::byte> target(part.target);
    const auto wrong = Content(plan_.seed, group.number, i).first_wrong(target.first(part.sent));
    if (wrong || !is_untouched(target.subspan(part.sent))) {
      wrong_ = fmt::format("group {} position {}: wrong byte at {} of {}", group.number, i,
                           wrong.value_or(part.sent), part.sent);
    }
    if (plan_.memory_returns && !link_.take_back_receive(std::exchange(part.to, nullptr))) {
      wrong_ = fmt::format("group {}: deregMr() does not know its memory", group.number);
    }
    // It is ours again: nothing may touch it any more.
    std::fill(part.target.begin(), part.target.end(), untouched);
  }
  group.received = true;
  return true;
}

void Traffic::test_receives() {
  while (receives_done_ < receives_posted_ && take_received(group(receives_done_))) {
    ++receives_done_;
  }
}

/// One that is done is gone from those that are open.
bool Traffic::take_sent(size_t at) {
  const OpenSend one = open_sends_[at];
  int bytes = -1;
  if (!is_done(true, one.request, &bytes)) {
    return false;
  }
  Group& sent = group(one.group);
  Group::Part& part = sent.parts[one.part];
  if (bytes != static_cast<int>(part.sent)) {
    wrong_ = fmt::format("group {} position {}: a send of {} bytes says that it had {}", one.group,
                         one.part, part.sent, bytes);
  }
  if (plan_.memory_returns && !link_.take_back_send(std::exchange(part.from, nullptr))) {
    wrong_ = fmt::format("group {}: deregMr() does not know its memory", one.group);
  }
  // The caller computes on: whoever still sends from here sends something else.
  std::fill(part.source.begin(), part.source.end(), std::byte{0x5A});
  --sent.sends_open;
  open_sends_.erase(open_sends_.begin() + static_cast<ptrdiff_t>(at));
  return true;
}

/// The oldest, as NCCL's proxy, and of the others one after the other.
void Traffic::test_sends() {
  while (!open_sends_.empty() && take_sent(0)) {
  }
  while (open_sends_.size() > 1 && take_sent(1 + looked_at_++ % (open_sends_.size() - 1))) {
  }
  // What was done before the failure counts as done.
  for (size_t at = 0; link_.sender().phase() == Phase::failed && at < open_sends_.size();) {
    at += take_sent(at) ? 0 : 1;
  }
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
  if (wrong_.empty()) {
    wrong_ = link_.world().violation();
  }
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
