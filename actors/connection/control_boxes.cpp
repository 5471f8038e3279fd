#include "actors/connection/control_boxes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/control.h"

namespace nccl_ha {

void ControlBoxes::begin(Lane& lane) {
  lane.control.next = 0;
  lane.control.open = 0;
  lane.control.due = false;
  push(lane);
}

bool ControlBoxes::may_write(const LaneControl& control) {
  bool free = control.open < ControlBox::slots;
  for (uint32_t i = 1; i <= control.open; ++i) {
    const uint32_t number = control.under_way[(control.posted - i) % ControlBox::slots];
    free = free && number % ControlBox::slots != control.next % ControlBox::slots;
  }
  return state_.holds(free, "a place in the peer's box is written once at a time") &&
         state_.holds(control.next < sequencer_.first_open() + ControlBox::slots,
                      "a message is written over one that the peer has taken");
}

void ControlBoxes::push(Lane& lane) {
  LaneControl& control = lane.control;
  if (!lane.carries_control()) {
    return;
  }
  control.next = std::max(control.next, sequencer_.first_open());
  while (control.next != sequencer_.next() && control.place_is_free() &&
         control.next < sequencer_.first_open() + ControlBox::slots) {
    if (!may_write(control)) {
      return;
    }
    const std::span<std::byte> frame = sequencer_.frame(control.next);
    const size_t slot = control.next % ControlBox::slots;
    auto& place = control.box->outgoing[slot];
    set_numbers(frame, control.next, sequencer_.expected());
    std::memcpy(place.data(), frame.data(), frame.size());
    fabric::WritePost post;
    post.id = control_id;
    post.gather_count = 1;
    post.gathers[0] = {place.data(), static_cast<uint32_t>(frame.size()), control.source_key};
    post.remote_address = control.peer_box + slot * ControlBox::slot_bytes;
    post.remote_key = control.peer_key;
    post.has_immediate = true;
    post.immediate = ControlMark{static_cast<uint8_t>(control.next),
                                 static_cast<uint16_t>(sequencer_.expected()), lane.epoch}
                         .pack();
    post.host_memory = true;
    const Errc posted = lane.path().post_write(post);
    if (posted != Errc::ok) {
      control.due = posted == Errc::again;
      return;
    }
    control.under_way[control.posted++ % ControlBox::slots] = control.next;
    ++lane.writes_open;
    ++control.open;
    ++control.next;
  }
}

void ControlBoxes::push_all() {
  for (Lane& lane : paths_.lanes()) {
    push(lane);
  }
}

void ControlBoxes::confirm_on(Lane& lane) {
  LaneControl& control = lane.control;
  if (!lane.carries_control()) {
    return;
  }
  control.confirm_due = control.confirms_open != 0;
  if (control.confirm_due) {
    return;
  }
  const Errc posted = post_mark(lane, answers_ ? answer_id : confirm_id);
  control.confirms_open += posted == Errc::ok ? 1 : 0;
  control.due = control.due || posted == Errc::again;
}

void ControlBoxes::confirm_all() {
  for (Lane& lane : paths_.lanes()) {
    confirm_on(lane);
  }
}

void ControlBoxes::send_heartbeat(Lane& lane) {
  if (lane.control.heartbeats_open == 0 && post_mark(lane, heartbeat_id) == Errc::ok) {
    ++lane.control.heartbeats_open;
    lane.counters->heartbeats_sent.add();
  }
}

Errc ControlBoxes::post_mark(Lane& lane, uint64_t id) {
  fabric::WritePost post;
  post.id = id;
  post.has_immediate = true;
  post.immediate = ControlMark{0, static_cast<uint16_t>(sequencer_.expected()), lane.epoch}.pack();
  post.host_memory = true;
  const Instant now = state_.context->clock().now();
  const Errc posted = lane.path().post_write(post);
  if (posted == Errc::ok) {
    state_.record(TraceEvent::mark_sent, lane.control.sent_numbers.next(lane.epoch), lane.epoch,
                  paths_.at(lane), now);
  }
  lane.writes_open += posted == Errc::ok ? 1 : 0;
  return posted;
}

bool ControlBoxes::take_write(const fabric::Completion& completion, Lane& lane) {
  const bool good = completion.status == fabric::CompletionStatus::ok;
  LaneControl& control = lane.control;
  if (good && control.due) [[unlikely]] {
    control.due = false;
    push(lane);
    owner_.on_box_room();
  }
  if (completion.id < answer_id || completion.id > control_id) {
    return false;
  }
  if (!state_.holds(lane.writes_open != 0 && (completion.id != control_id || control.open != 0) &&
                        (completion.id != heartbeat_id || control.heartbeats_open != 0),
                    "no more control messages complete than were posted")) {
    return true;
  }
  --lane.writes_open;
  control.open -= completion.id == control_id ? 1 : 0;
  control.heartbeats_open -= completion.id == heartbeat_id ? 1 : 0;
  control.confirms_open -= completion.id == confirm_id || completion.id == answer_id ? 1 : 0;
  if (good) {
    if (control.confirm_due) {
      confirm_on(lane);
    }
    if (completion.id == heartbeat_id) {
      lane.health.show_life();
      lane.counters->heartbeats_answered.add();
      state_.note(TraceEvent::heartbeat_answered, paths_.at(lane), 0);
    }
    push(lane);
  }
  return true;
}

bool ControlBoxes::take(const fabric::Completion& completion, Lane& lane) {
  if (completion.kind == fabric::CompletionKind::write) {
    return take_write(completion, lane);
  }
  if (completion.kind != fabric::CompletionKind::receive_immediate ||
      completion.status != fabric::CompletionStatus::ok ||
      !ControlMark::marks(completion.immediate)) {
    return false;
  }
  LaneControl& control = lane.control;
  const ControlMark mark = ControlMark::unpack(completion.immediate);
  const bool message = completion.bytes != 0;
  bool right = control.box && Immediate::same_epoch(completion.immediate, lane.epoch) &&
               completion.bytes <= ControlBox::slot_bytes &&
               (!message || completion.bytes >= control_header_bytes);
  if (right && message) {
    const auto& place = control.box->incoming[mark.number % ControlBox::slots];
    inbox_.push_back({{place.begin(), place.begin() + completion.bytes}, mark.number});
    if (inbox_.size() == 1) {
      owner_.on_box_message();
    }
    right = inbox_.size() <= ControlBox::slots * lanes_max;
  }
  if (!right) {
    state_.fail(fail(Errc::remote, "the peer wrote a malformed control message"));
    return true;
  }
  ++control.marks;
  lane.counters->marks_received.add();
  if (!message) {
    state_.record(TraceEvent::mark_received, control.received_numbers.next(lane.epoch), lane.epoch,
                  paths_.at(lane), state_.context->clock().now());
  }
  paths_.replace_credit(lane);
  sequencer_.confirmed_low(mark.confirmed);
  if (sequencer_.first_open() != sequencer_.next()) {
    push(lane);
  }
  return true;
}

std::vector<ControlBoxes::Arrived> ControlBoxes::take_inbox() { return std::exchange(inbox_, {}); }

}  // namespace nccl_ha
