// Control messages, confirmations and heartbeats over the paths of a connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/connection/path_set.h"
#include "actors/connection/state.h"
#include "actors/immediate.h"
#include "ha/control_sequencer.h"

namespace nccl_ha {

/// Writes messages into the boxes that the peer offers on each lane, as far as there are places
/// for them, and takes what arrives in this side's.  One thread.
class ControlBoxes {
 public:
  class Owner {
   public:
    /// The first message lies in the inbox.  Not from here: it may end the path that speaks.
    virtual void on_box_message() = 0;
    /// Something had found no room on a lane, which has some again.
    virtual void on_box_room() = 0;

   protected:
    ~Owner() = default;
  };
  /// A message as it arrived, and the number that its write was announced with.
  struct Arrived {
    std::vector<std::byte> frame;
    uint8_t number = 0;
  };

  ControlBoxes(Owner& owner, ConnectionState& state, PathSet& paths,
               ha::ControlSequencer& sequencer)
      : owner_(owner), state_(state), paths_(paths), sequencer_(sequencer) {}

  /// A lane came into use: everything that is not confirmed goes over it.
  void begin(Lane& lane);
  /// Writes what the peer has not taken yet.
  void push(Lane& lane);
  void push_all();
  /// Tells the peer what has been taken of its messages: one at a time on each lane, as the peer
  /// may ask much faster than a lane carries answers, and what they take is what clear-to-sends and
  /// control messages need.
  void confirm_on(Lane& lane);
  void confirm_all();
  /// Unless one is under way there.
  void send_heartbeat(Lane& lane);
  /// From now on a confirmation answers the peer's last words (is_answer).
  void answer_last_words() { answers_ = true; }

  /// True: it was about control messages, and is dealt with.
  bool on_completion(const fabric::Completion& completion, Lane& lane) {
    const bool data =
        completion.kind == fabric::CompletionKind::write
            ? !lane.control.due && (completion.id < answer_id || completion.id > control_id)
            : !completion.has_immediate || !ControlMark::marks(completion.immediate);
    return !data && take(completion, lane);
  }
  /// A confirmation of the peer's last words has arrived at its NIC.
  static bool is_answer(const fabric::Completion& completion) {
    return completion.kind == fabric::CompletionKind::write && completion.id == answer_id &&
           completion.status == fabric::CompletionStatus::ok;
  }
  std::vector<Arrived> take_inbox();

 private:
  static constexpr uint64_t control_id = UINT64_MAX - 1;
  static constexpr uint64_t confirm_id = UINT64_MAX - 2;
  static constexpr uint64_t heartbeat_id = UINT64_MAX - 3;
  static constexpr uint64_t answer_id = UINT64_MAX - 4;  ///< a confirmation, the last one

  bool take(const fabric::Completion& completion, Lane& lane);
  /// The next message's place may be written.
  [[nodiscard]] bool may_write(const LaneControl& control);
  bool take_write(const fabric::Completion& completion, Lane& lane);
  /// A write without bytes that carries what was taken of the peer's messages.
  [[nodiscard]] Errc post_mark(Lane& lane, uint64_t id);

  Owner& owner_;
  ConnectionState& state_;
  PathSet& paths_;
  ha::ControlSequencer& sequencer_;
  std::vector<Arrived> inbox_;
  bool answers_ = false;
};

}  // namespace nccl_ha
