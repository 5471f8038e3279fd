// What a connection actor shares with the thread that calls NCCL's entry points.
//
// The caller fills a request slot, publishes its index in a single-producer ring and rings a
// doorbell; the actor works and publishes states.  Each field has one writer; what both touch is
// atomic and on its own line.  Nothing here blocks, allocates or enters the kernel.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ha/chunk_split.h"
#include "ha/ledger.h"
#include "runtime/actor.h"
#include "runtime/engine.h"
#include "runtime/fabric/provider.h"
#include "runtime/mailbox.h"
#include "runtime/result.h"
#include "runtime/worker.h"

namespace nccl_ha {

inline constexpr size_t group_max = 8;      ///< buffers of one grouped receive
inline constexpr size_t receives_max = 32;  ///< open receives of a connection
inline constexpr size_t sends_max = receives_max * group_max;
inline constexpr size_t flushes_max = receives_max;
inline constexpr size_t chunks_max = ha::ledger_chunks_max;  ///< of one message
inline constexpr size_t cts_slots = 64;  ///< more than open groups, so that a slot is never hot
/// Entries of the ring that clear-to-sends are written into: twice those of all open groups.
inline constexpr size_t cts_entries = 2 * receives_max * group_max;
inline constexpr size_t cts_shadows = 4;  ///< paths over other NICs that an entry has keys for
/// Groups that may be found in memory before a completion tells of them.
inline constexpr uint64_t cts_found_ahead_max = 8;

enum class RequestState : uint32_t { free, pending, done };
enum class Phase : uint32_t { connecting, ready, failed };

class Channel;

/// Head of every request: what test() looks at.
struct alignas(64) Request {
  std::atomic<RequestState> state{RequestState::free};
  uint16_t index = 0;
  bool is_send = false;
  uint8_t count = 1;
  Channel* channel = nullptr;
  std::array<uint32_t, group_max> bytes{};  ///< result: bytes moved per position
};

struct SendRequest : Request {
  const std::byte* data = nullptr;
  uint32_t size = 0;
  uint32_t key = 0;
  uint64_t group = 0;
  uint32_t position = 0;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  bool no_speculative_placement = false;
  bool host_memory = true;
  // the actor's
  ha::ChunkSplit split;
  ha::ChunkLedger ledger;
};

struct ReceiveRequest : Request {
  struct Buffer {
    std::byte* data = nullptr;
    uint32_t size = 0;
    uint32_t key = 0;
    int tag = 0;
  };
  std::array<Buffer, group_max> buffers{};
  bool polled = false;
  bool is_flush = false;  ///< no receive: makes earlier ones visible to the GPU (buffers[0])
  // the actor's
  bool flush_lost = false;  ///< on one of the NICs that were asked
  uint64_t group = 0;
  uint32_t missing = 0;                          ///< positions
  std::array<uint16_t, group_max> arrived{};     ///< chunks of each position, a bit each
  std::array<uint8_t, group_max> chunk_count{};  ///< of each position; 0: not known yet
};

/// One entry of a clear-to-send: "position i of group g may be written here".  Written by the
/// receiver's actor into the sender's memory, so the layout is wire format.
struct alignas(64) CtsEntry {
  uint64_t group;
  uint64_t address;
  uint32_t size;
  uint32_t key;
  int32_t tag;
  uint8_t count;  ///< positions of the group
  uint8_t position;
  uint8_t no_speculative_placement;  ///< the buffer is polled while it is written
  uint8_t reserved;
  /// Of the buffer on the device of each path over another NIC; 0: not told.
  std::array<uint32_t, cts_shadows> shadow_keys;
  std::array<uint16_t, cts_shadows> shadow_epochs;  ///< of those paths, low bits
  uint64_t check;                                   ///< of the fields before: see seal()

  /// Receiver, when everything else is in place.
  void seal() { check = sum(); }
  /// Of a copy: it is no mixture of two entries.  A NIC may write one while it is looked at.
  bool is_whole() const { return check == sum(); }

 private:
  // Words, each times an odd number that has nothing to do with the others (the first 62 bits of
  // pi, e and the roots of 2, 3, 5, 7 and 11, made odd): a mixture of two entries has the sum of
  // neither, but for a chance of one in 2^64.
  uint64_t sum() const {
    const auto word = std::bit_cast<std::array<uint64_t, 8>>(*this);
    return 1 + word[0] * 0x3243F6A8885A308D + word[1] * 0x2B7E151628AED2A7 +
           word[2] * 0x16A09E667F3BCC91 + word[3] * 0x1BB67AE8584CAA73 +
           word[4] * 0x23C6EF372FE94F83 + word[5] * 0x2A54FF53A5F1D36F +
           word[6] * 0x3510E527FADE682D;
  }
};
static_assert(sizeof(CtsEntry) == 64 && offsetof(CtsEntry, shadow_keys) == 32 &&
              offsetof(CtsEntry, check) == 56);

/// What the peer's NIC may be writing right now; is_whole() judges the copy and nothing newer.
inline CtsEntry copy_of(const CtsEntry& live) {
  const CtsEntry copy = live;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

/// The entries of a group lie side by side, and so do the groups that are announced together.
using CtsRing = std::array<CtsEntry, cts_entries>;

/// Sizes of chunks whose immediate could not carry them (see ImmediateKind::recorded); written by
/// the sender into the receiver's memory, so the layout is wire format.
struct SizeRecords {
  std::array<std::array<std::array<uint32_t, chunks_max>, group_max>, cts_slots> bytes;
};
static_assert(sizeof(SizeRecords) == 32768);

/// Single-producer single-consumer ring of slot indexes.  A cell carries its lap beside the index,
/// so that handing one over moves a single cache line.
template <size_t Capacity>
class IndexRing {
  static_assert(Capacity != 0 && (Capacity & (Capacity - 1)) == 0, "positions wrap");

 public:
  void push(uint16_t index) {  // producer; never full: there are only Capacity slots
    cells_[tail_ % Capacity].store(lap_of(tail_) | index, std::memory_order_release);
    ++tail_;
    __builtin_prefetch(&cells_[tail_ % Capacity], 1);
  }
  bool pop(uint16_t* index) {  // consumer
    const uint32_t cell = cells_[head_ % Capacity].load(std::memory_order_acquire);
    if ((cell & lap_mask) != lap_of(head_)) {
      return false;
    }
    *index = static_cast<uint16_t>(cell);
    ++head_;
    return true;
  }
  bool any() const {  // consumer
    return (cells_[head_ % Capacity].load(std::memory_order_relaxed) & lap_mask) == lap_of(head_);
  }

 private:
  static constexpr uint32_t lap_mask = 0xFFFF0000;
  /// Never that of the lap before, and not 0 in the first one.
  static uint32_t lap_of(uint32_t position) { return ((position / Capacity + 1) << 16) & lap_mask; }

  alignas(64) uint32_t tail_ = 0;  // producer's
  alignas(64) uint32_t head_ = 0;  // consumer's
  alignas(64) std::array<std::atomic<uint32_t>, Capacity> cells_{};
};

/// Messages to a connection actor.
enum class ConnectionMessage : uint32_t {
  doorbell = 1,  ///< requests were submitted; Channel::take_doorbell() says whether that is news
  close = 2,     ///< the caller is done with the connection
  oversize = 3,  ///< the caller tried to send more than the peer's receive holds
  suspect = 4,   ///< somebody knows that path `arg` is not to be trusted
  inbox = 5,     ///< the actor to itself: control messages came over a path
  rejected = 6,  ///< the actor to itself: lane `arg` cannot be used, as Connection::reject() said
};

/// What failovers did on one side of a connection, for whoever looks.  The actor writes it.
struct FailoverCounts {
  std::atomic<uint64_t> down{0};          ///< paths given up that carried traffic
  std::atomic<uint64_t> back{0};          ///< paths replaced
  std::atomic<uint64_t> moves{0};         ///< sender: traffic went to a shadow or back
  std::atomic<uint64_t> chunks_again{0};  ///< sender: sent once more
  std::atomic<uint64_t> bytes_again{0};
  std::atomic<uint64_t> chunks_kept{0};  ///< sender: had arrived, only the acknowledgement was lost
  std::atomic<uint64_t> longest_ns{0};   ///< from down to back
  std::atomic<uint64_t> rejected{0};     ///< shadows whose device did not take this side's memory

  static void add(std::atomic<uint64_t>& counter, uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
};

/// Hears of the ends of requests, in the caller's thread.
class RequestWatcher {
 public:
  virtual ~RequestWatcher() = default;
  /// `done`: as it should; otherwise the connection failed, and this may be said again.
  virtual void ended(const Request& request, bool done) = 0;
};

/// What a channel and its paths call, for every message, in the actor that serves them.  A base
/// that comes first costs the least to call.
class Server : protected fabric::PathOwner {
 public:
  /// Inline mode, in the caller's own turn: requests were submitted.
  virtual void on_submitted() = 0;
  /// Inline mode, in the caller's own turn, for a sender without a place for its message: makes one
  /// known that no completion has told of yet.  False: there is none.
  virtual bool poll_cts() { return false; }
};

/// The side-independent part.
class Channel {
 public:
  /// `answered_late`: what is submitted waits for the peer's caller.
  Channel(uint64_t domain, fabric::Attachment at, Worker& worker, Engine& engine,
          bool answered_late)
      : engine_(&engine),
        worker_slot_(engine.slot_of(worker)),
        domain_(domain),
        attachment_(at),
        answered_late_(answered_late) {}
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  uint64_t domain() const { return domain_; }
  /// Where memory for this connection is to be registered.
  const fabric::Attachment& attachment() const { return attachment_; }
  /// Caller.  Inline mode: turns the connection's worker; with progress threads a mere branch.
  void assist() {
    if (worker_slot_ != nullptr) [[likely]] {
      static_cast<void>(rung_ ? deliver_doorbell() : engine_->turn(*worker_slot_));
    }
  }
  /// Caller.  A doorbell that found the mailbox full is rung again.
  void ring_what_was_missed() {
    if (ring_missed_) [[unlikely]] {
      ring_mailbox();
    }
  }
  /// Caller, whose submissions have all been followed by assist(), and who waits for one of them.
  void look_for(const std::atomic<RequestState>& state) {
    ring_what_was_missed();
    if (worker_slot_ != nullptr) [[likely]] {
      engine_->turn_for(
          *worker_slot_, &state, [] { return false; },
          [&] { return state.load(std::memory_order_relaxed) != RequestState::pending; });
    }
  }

  Phase phase() const { return phase_.load(std::memory_order_acquire); }
  /// Valid once phase() is failed; never changes afterwards.
  const Error& failure() const { return failure_; }

  /// The peer accepted the connection, whatever happened since.  Valid once phase() is not
  /// connecting.
  bool established() const { return established_; }

  // Actor's side.
  void set_established() {
    if (phase_.load(std::memory_order_relaxed) == Phase::connecting) {
      established_ = true;
    }
  }
  void set_ready() {
    set_established();
    Phase expected = Phase::connecting;
    phase_.compare_exchange_strong(expected, Phase::ready, std::memory_order_acq_rel);
  }
  /// The first failure stays.
  void set_failed(const Error& error) {
    if (phase_.load(std::memory_order_relaxed) != Phase::failed) {
      failure_ = error;
      phase_.store(Phase::failed, std::memory_order_release);
    }
  }
  /// Inline mode: who takes submissions without a message; nullptr: nobody.
  void serve_by(Server* server) { server_ = server; }
  Server* server() const { return server_; }  ///< whoever turns the worker
  bool take_doorbell() { return doorbell_.exchange(false, std::memory_order_acq_rel); }

  // Caller's side.
  /// Tells where the actor lives; before the first request.
  void attach(ActorId actor, Address<Message>&& address) {
    actor_ = actor;
    address_ = std::move(address);
  }
  bool is_inline() const { return worker_slot_ != nullptr; }
  bool attached() const { return static_cast<bool>(address_); }
  void ring() {
    if (worker_slot_ != nullptr) {
      rung_ = true;  // every call that submits assists as well
      return;
    }
    ring_mailbox();
  }
  void ring_mailbox() {
    if (!doorbell_.exchange(true, std::memory_order_acq_rel)) {
      send_doorbell();
    }
  }
  [[nodiscard]] bool tell(ConnectionMessage kind) { return address_.try_send(message_of(kind)); }
  /// The actor gives up path number `path` and replaces it.  False: no room now.
  [[nodiscard]] bool tell_suspect(uint32_t path) {
    Message message = message_of(ConnectionMessage::suspect);
    message.arg = path;
    return address_.try_send(message);
  }

  FailoverCounts failovers;
  std::unique_ptr<RequestWatcher> watcher;  ///< the caller's; null: nobody wants to know

 protected:
  Engine* const engine_;
  Engine::WorkerSlot* const worker_slot_;  ///< inline mode: where the worker is turned
  Server* server_ = nullptr;               ///< read and written by whoever turns the worker

 private:
  Message message_of(ConnectionMessage kind) const {
    Message message{};
    message.to = actor_;
    message.kind = static_cast<uint32_t>(kind);
    return message;
  }
  bool deliver_doorbell();
  void send_doorbell();

  const uint64_t domain_;
  const fabric::Attachment attachment_;
  const bool answered_late_;
  alignas(64) std::atomic<Phase> phase_{Phase::connecting};
  Error failure_{};
  bool established_ = false;  ///< written before phase_
  alignas(64) std::atomic<bool> doorbell_{false};
  bool ring_missed_ = false;
  bool rung_ = false;  ///< inline: submitted since the last turn of ours
  ActorId actor_{};
  Address<Message> address_;
};

/// Sending side of a connection.
class SendChannel final : public Channel {
 public:
  SendChannel(uint64_t domain, fabric::Attachment at, Worker& worker, Engine& engine);

  /// Caller.  Finds the place for a message with `tag` in the oldest incomplete group.  nullptr:
  /// the peer has not posted a matching receive yet.
  const CtsEntry* match(int tag);
  /// Caller for whom match() found nothing, and whose submissions have all been followed by
  /// assist().  The same as that, but if there is a place nothing else is looked at.
  void poll_cts(int tag) {
    if (worker_slot_ != nullptr) [[likely]] {
      engine_->turn_for(
          *worker_slot_, this, [this] { return server_ != nullptr && server_->poll_cts(); },
          [this, tag] { return match(tag) != nullptr; });
    }
  }
  /// Caller.  Takes the place found by match() and submits; nullptr when all slots are in use.
  SendRequest* submit(const CtsEntry& place, const void* data, uint32_t size, uint32_t key,
                      bool host_memory = true);
  void release(SendRequest& request);  ///< caller, after done
  size_t open() const { return sends_max - free_count_; }

  // Actor's side.
  bool next_submitted(uint16_t* index) { return submitted_.pop(index); }
  bool any_submitted() const { return submitted_.any(); }
  SendRequest& slot(uint16_t index) { return slots_[index]; }
  /// Of which the caller has submitted every send.
  uint64_t filled_groups() const { return group_.load(std::memory_order_acquire); }
  uint64_t published_groups() const { return published_.load(std::memory_order_relaxed); }
  /// Makes the group at the head of `entries` visible to the caller; of how many entries it is.  0:
  /// it makes no sense, or the peer announced more open groups than a connection may have.  The
  /// memory may be the peer's to write: what is judged and used is a copy.
  [[nodiscard]] size_t publish(std::span<const CtsEntry> entries);
  /// The same when a NIC may be writing there right now: 0 as well unless all of it has arrived.
  [[nodiscard]] size_t publish_if_there(std::span<CtsEntry> entries) {
    const bool any = std::atomic_ref(entries.front().group).load(std::memory_order_relaxed) ==
                     published_.load(std::memory_order_relaxed);
    return any ? publish_there(entries) : 0;
  }
  /// The copies of a group that was published and is not out of date; the rest is another's.
  std::span<const CtsEntry> entries_of(uint64_t group) const { return groups_[group % cts_slots]; }
  /// Of how many entries the group at the head of `entries` is, if it is group `number`, which was
  /// published before; else 0.
  [[nodiscard]] static size_t known_group(std::span<const CtsEntry> entries, uint64_t number);

 private:
  size_t publish_there(std::span<CtsEntry> entries);

  std::array<SendRequest, sends_max> slots_;
  IndexRing<sends_max> submitted_;
  alignas(64) std::atomic<uint64_t> published_{0};
  uint64_t seen_group_ = 0;  ///< actor's: group_ as last looked at, which is seldom
  alignas(64) std::array<std::array<CtsEntry, group_max>, cts_slots> groups_{};
  // caller only, but for group_
  alignas(64) std::atomic<uint64_t> group_{0};  ///< the group being filled
  uint32_t taken_ = 0;                          ///< its positions already used
  std::array<uint16_t, sends_max> free_;
  size_t free_count_ = 0;
};

/// Receiving side of a connection.
class ReceiveChannel final : public Channel {
 public:
  ReceiveChannel(uint64_t domain, fabric::Attachment at, Worker& worker, Engine& engine);

  /// Caller.  A free slot to fill in, or nullptr; submit() hands it to the actor.
  ReceiveRequest* acquire();
  /// The same for a flush; those have slots of their own, because a flush cannot be put off.
  ReceiveRequest* acquire_flush();
  void submit(ReceiveRequest& request);
  void release(ReceiveRequest& request);
  size_t open() const { return receives_max - free_count_; }

  // Actor's side.
  bool next_submitted(uint16_t* index) { return submitted_.pop(index); }
  ReceiveRequest& slot(uint16_t index) { return slots_[index]; }

  std::atomic<ReceiveChannel*> next_ready{nullptr};  ///< link in the listener's queue
  std::shared_ptr<ReceiveChannel> self;  ///< keeps an unaccepted connection alive in that queue

 private:
  std::array<ReceiveRequest, receives_max + flushes_max> slots_;
  IndexRing<receives_max + flushes_max> submitted_;
  alignas(64) std::array<uint16_t, receives_max> free_;
  size_t free_count_ = 0;
  std::array<uint16_t, flushes_max> free_flushes_;
  size_t free_flush_count_ = 0;
};

}  // namespace nccl_ha
