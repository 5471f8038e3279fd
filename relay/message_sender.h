// The sending half of a relayed path's end: cuts messages into frames, which the first hop carries,
// and keeps them until the other end has them.
//
// A message that needs a receive is not begun before the other end has told of one, so that nothing
// waits inside the relays for what a program does.  Pieces leave from where they lie; the processor
// copies those that the device which carries the hop does not reach.  One thread; calls nobody but
// the hop.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "relay/frame.h"
#include "relay/frame_memory.h"
#include "relay/hop_line.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::relay {

/// What all frames of one direction have in common.
struct FrameLine {
  NodeId origin{};
  NodeId destination{};
  uint64_t session = 0;
  uint16_t hops = 0;
  uint32_t chunk_bytes = 0;  ///< no piece is longer
};

class MessageSender {
 public:
  /// Frames given to the hop and not acknowledged by it; some of them are kept for acks.
  static constexpr uint32_t headers = 32;
  static constexpr uint32_t ack_headers = 4;

  MessageSender(HopSource& hops, uint64_t domain, uint32_t messages_max);
  ~MessageSender();
  MessageSender(const MessageSender&) = delete;
  MessageSender& operator=(const MessageSender&) = delete;

  Errc push(const fabric::WritePost& post);

  /// For the hop there that is made with these options; pieces of at most that size.
  Result<void> enter(const HopPlace& place, uint32_t chunk_bytes, fabric::PathOptions& options);
  /// Frames leave by that hop from now on.
  void open(HopLine& hop, const FrameLine& line);
  /// Gives the hop what it takes; true: something left.
  bool pump();
  /// Of the message whose memory is not registered any more, with which all ends; 0: of none.
  uint64_t lost() const { return lost_; }
  /// So many messages the other end has.
  uint64_t arrived() const { return arrived_; }
  /// Why the hop's device cannot be asked for keys now: nothing leaves by that hop any more.
  const std::optional<Error>& busy() const { return busy_; }
  /// False: too many are under way, try again when one has been sent.
  bool send_ack(uint64_t delivered, uint64_t receives);
  /// The hop is done with a frame.  The message that it was part of; 0: none.
  uint64_t on_sent(uint64_t id);

  /// The other end has all messages up to `delivered`, and has posted `receives` receives.  False:
  /// that cannot be.  `done(message)` for each that is complete now.
  template <class Done>
  bool on_ack(uint64_t delivered, uint64_t receives, const Done& done) {
    if (delivered > next_ || receives < peer_receives_) {
      return false;
    }
    peer_receives_ = receives;
    while (head_ < delivered) {
      ++arrived_;
      done(at(head_++));
    }
    return true;
  }
  /// What is left, in order; the one of that sequence number ends with `status`, the first if it is
  /// none of them, all others are flushed.
  template <class Done>
  void flush(uint64_t sequence, fabric::CompletionStatus status, const Done& done) {
    if (sequence <= head_ || sequence > tail_) {
      sequence = head_ + 1;
    }
    for (; head_ < tail_; ++head_) {
      done(at(head_), head_ + 1 == sequence ? status : fabric::CompletionStatus::flushed);
    }
  }

  struct Message {
    uint64_t id = 0;
    bool unsignaled = false;
    bool begun = false;
    uint32_t gather_count = 0;
    fabric::Gather gathers[fabric::gathers_max]{};
    uint32_t bytes = 0;
    uint32_t flags = 0;
    uint32_t immediate = 0;
    uint32_t remote_key = 0;
    uint64_t remote_address = 0;
    bool needs_receive() const { return (flags & frame_immediate) != 0; }
  };

 private:
  Message& at(uint64_t index) { return messages_[index & mask_]; }
  bool post_piece(Message& message);
  bool post_frame(const Frame& frame, const fabric::Gather* payload);
  bool name_by_device(fabric::Gather& piece);
  bool copy(const fabric::Gather& piece, std::byte* to);

  HopSource& hops_;
  fabric::Memory& memory_;
  fabric::MemoryGuard guard_;
  const uint64_t domain_;
  HopLine* hop_ = nullptr;
  FrameLine line_;
  FrameMemory headers_;                ///< and the pieces behind them, where these are copied
  std::vector<uint32_t> free_;         ///< headers
  std::vector<uint64_t> sequence_of_;  ///< of each header's message; 0: an ack
  uint32_t acks_ = 0;                  ///< headers of one
  uint32_t messages_max_;
  std::vector<Message> messages_;
  uint64_t mask_;
  uint64_t head_ = 0;  ///< the oldest that the other end does not have
  uint64_t next_ = 0;  ///< the oldest that has not been given to the hop whole
  uint64_t tail_ = 0;
  uint64_t arrived_ = 0;  ///< so many; head_ goes on at the end
  uint32_t gather_ = 0;   ///< of next_'s: the piece to be sent
  uint32_t gather_offset_ = 0;
  uint32_t offset_ = 0;
  uint64_t receives_used_ = 0;
  uint64_t peer_receives_ = 0;
  uint64_t lost_ = 0;
  std::optional<Error> busy_;
};

}  // namespace nccl_ha::relay
