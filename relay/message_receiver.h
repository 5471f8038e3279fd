// The receiving half of a relayed path's end: posted receives meet the messages that the last hop
// has brought.
//
// Writes are in the receiver's memory before their note arrives.  Those to memory that the device
// which carries the hop does not reach come piece by piece, and are copied to where they belong.
// One thread; calls nobody but the hop.
#pragma once

#include <cstdint>

#include "relay/frame.h"
#include "relay/hop_line.h"
#include "relay/message_sender.h"
#include "runtime/fabric/datagram/posted_receives.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::relay {

class MessageReceiver {
 public:
  MessageReceiver(fabric::Memory& memory, uint64_t domain, uint32_t receives_max);
  ~MessageReceiver();
  MessageReceiver(const MessageReceiver&) = delete;
  MessageReceiver& operator=(const MessageReceiver&) = delete;

  Errc post();

  /// Frames come by that hop from now on.  `line`: of what the other end sends.
  void open(HopLine& hop, const FrameLine& line) {
    hop_ = &hop;
    line_ = line;
  }
  /// What came into that slot; nullopt: nothing of this path's other end.
  std::optional<Frame> frame(uint32_t slot) const;

  struct Outcome {
    enum class Kind : uint8_t {
      nothing,   ///< to be told
      complete,  ///< the receive has met its message
      wrong,     ///< no message that the other end may send now
      refused,   ///< a write's address or key is none of this path's; no receive is taken
    } kind = Kind::nothing;
    fabric::Completion completion{};
  };
  /// A note, or a piece of a message, which lies in that slot.
  Outcome on_message(const Frame& frame, uint32_t slot);

  uint64_t delivered() const { return delivered_; }
  uint64_t posted() const { return posted_; }
  bool empty() const { return receives_.empty(); }
  /// The oldest; there must be one.
  void take_receive() { receives_.pop(); }

 private:
  Outcome on_note(const Frame& frame);
  Outcome on_piece(const Frame& frame, uint32_t slot);
  Outcome written(const Frame& frame);

  fabric::Memory& memory_;
  fabric::MemoryGuard guard_;
  uint64_t domain_;
  FrameLine line_;
  HopLine* hop_ = nullptr;
  fabric::PostedReceives receives_;
  uint64_t posted_ = 0;
  uint64_t delivered_ = 0;
  uint32_t arrived_bytes_ = 0;  ///< of the message that is coming in piece by piece
};

}  // namespace nccl_ha::relay
