// One direction of a session in a relay: frames come into slots by one hop and leave by the other.
//
// Bounded: a frame comes in only where a slot is free, so that who sends more than the next hop
// takes has to wait, and nothing is dropped.  The two directions have slots of their own, and what
// reaches an end of the path is consumed there whatever a program does (MessageSender): so slots
// that are all full become free again.  One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "relay/egress.h"
#include "relay/hop_line.h"

namespace nccl_ha::relay {

class Forwarder {
 public:
  struct Options {
    uint64_t session = 0;
    NodeId origin{};
    NodeId destination{};
    uint16_t hop = 0;   ///< of this relay in this direction, from 0
    uint16_t hops = 0;  ///< relays on the route
    /// A message is passed on when all of it is here, or as much as there are slots for.
    bool store = false;
    /// What asks the receiver by what key its hop knows memory: where this relay is the last one,
    /// and a device carries that hop.
    std::function<void(uint32_t key)> ask_key;
    bool last() const { return hop + 1 == hops; }
  };
  struct Counts {
    uint64_t frames = 0;
    uint64_t bytes = 0;  ///< payload
    uint64_t waits = 0;  ///< times that the next hop took no more
  };

  /// Of what comes by `from`; both outlive it.
  Forwarder(HopLine& from, HopLine& to) : from_(from), to_(to) {}
  ~Forwarder() { close(); }
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  /// With an egress others have their turns too; without one everything leaves at once.
  void open(const Options& options, std::shared_ptr<Egress> egress = nullptr);
  /// Nothing leaves any more.
  void close();
  /// A frame lies in that slot; an error: the neighbour breaks the rules.
  Result<void> on_frame(uint32_t slot);
  /// The next hop has completed a post of that id.
  void on_sent(uint64_t id);
  /// The receiver's hop knows memory that its program knows by `key` by that one (0: by none).
  /// False: nobody has asked.
  bool on_key(uint32_t key, uint32_t remote_key);
  /// Gives the next hop what it takes, when it is this session's turn.
  void pump();
  /// It is: frames of at most so many bytes.
  FairShares::Taken pass_on(uint64_t bytes);

  /// Of the message to which a post of that id belonged.
  uint64_t sequence_of(uint64_t id) const { return places_[id].frame.sequence; }
  const Counts& counts() const { return counts_; }
  size_t waiting() const { return waiting_.size(); }  ///< frames that have not left

 private:
  struct Place {
    Frame frame;
    uint32_t posts = 0;    ///< that the next hop has not completed
    bool leaving = false;  ///< all of them are made
    bool written = false;  ///< its payload has been given to the next hop
    bool counted = false;  ///< the egress knows that it is under way
    size_t bytes() const { return frame_header_bytes + frame.payload_bytes; }
  };
  bool post(uint32_t slot);
  std::optional<uint32_t> key_at_receiver(const Frame& frame);
  bool write_through(uint32_t slot, uint32_t remote_key);
  bool post_note(uint32_t slot);

  HopLine& from_;
  HopLine& to_;
  Options options_;
  std::vector<Place> places_;     ///< of each slot
  std::deque<uint32_t> waiting_;  ///< slots, in the order in which their frames came
  size_t released_ = 0;           ///< so many of them may leave
  Counts counts_;
  std::map<uint32_t, uint32_t> keys_;  ///< at the receiver's hop, by those of its program
  std::optional<uint32_t> asked_;      ///< of them
  std::shared_ptr<Egress> egress_;
  uint32_t member_ = 0;  ///< there
};

}  // namespace nccl_ha::relay
