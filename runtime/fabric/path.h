// The narrow waist between the actors and every fabric provider (verbs, datagram, simulator).
//
// A Path is an ordered, reliable queue pair to one peer with the semantics of an RC queue pair:
// posts complete in posting order, a write lands in the peer's registered memory without the peer's
// help, and a write with immediate consumes one posted receive at the peer.  All members are called
// on the thread that owns the path (its worker) unless stated otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/aead.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/fabric/completion_status.h"
#include "runtime/fabric/failure_domain.h"
#include "runtime/fabric/path_traits.h"

namespace nccl_ha::fabric {

class OwnMemory;
class Path;

/// What completed.
enum class CompletionKind : uint8_t {
  write,              ///< post_write at this side
  receive_immediate,  ///< post_receive at this side: a peer's write with immediate arrived
  flush,              ///< post_flush at this side
};

/// One completion.  `id` is the number given at the post, 0 for receives, which have none; `bytes`
/// is the length of the arrived message for receives and of the posted one for writes.
struct Completion {
  uint64_t id = 0;
  Path* path = nullptr;
  CompletionKind kind = CompletionKind::write;
  CompletionStatus status = CompletionStatus::ok;
  /// False in a receive that is done: a device met it with something that no path posts.
  bool has_immediate = false;
  uint32_t immediate = 0;
  uint32_t bytes = 0;
};

/// A piece of registered local memory.  Set whole where it counts and left as it is elsewhere: one
/// is made for every message.
struct Gather {
  const std::byte* address;
  uint32_t length;
  uint32_t key;  ///< local key from Memory::add
};

inline constexpr size_t gathers_max = 2;

/// A one-sided write.  The memory must stay unchanged until the completion.
struct WritePost {
  uint64_t id = 0;
  Gather gathers[gathers_max];
  uint32_t gather_count = 0;  ///< 0: a zero-byte write (only useful with an immediate)
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  bool has_immediate = false;
  uint32_t immediate = 0;
  /// The reader polls the destination while it is written (NCCL's LL protocols): a provider must
  /// never let a byte appear at a place that it does not belong to, not even for a moment.
  bool no_speculative_placement = false;
  /// Nobody waits for this one: no completion is reported when it succeeds.
  bool unsignaled = false;
  /// The memory is the host's and small parts of it may be copied at the post (inline).
  bool host_memory = false;
  /// A hint: no other one follows at once, so that it need not wait for the end of the turn.
  bool last = false;
};

/// Makes what a NIC wrote to GPU memory visible to the GPU, by a read back through the same NIC.
struct FlushPost {
  uint64_t id = 0;
  uint64_t address = 0;  ///< in the memory written to; one byte is read
  uint32_t remote_key = 0;
};

enum class PathState : uint8_t {
  idle,        ///< made, connect() not called
  connecting,  ///< checking that small and full-size packets get through
  ready,       ///< carries traffic
  error,       ///< failed; all work flushed; final
};
const char* to_text(PathState state);

/// A host that a path is to lead through, as its fabric names it: nobody else looks inside.
struct Hop {
  static constexpr size_t bytes_max = 64;
  uint8_t length = 0;
  std::array<std::byte, bytes_max> bytes{};
};
inline constexpr size_t hops_max = 8;

/// Sizes a path is made with.
struct PathOptions {
  uint64_t domain = 0;          ///< protection domain: only memory of this domain may be written
  bool own_domain = false;      ///< also where a device writes, which else knows one for all
  uint32_t writes_max = 320;    ///< writes posted and not completed
  uint32_t receives_max = 96;   ///< receives posted and not completed
  uint32_t receives_spare = 0;  ///< so many of them the peer never uses: they may be held back
  /// This side sends the first probe: its peer called connect() before.  One of the two must.
  bool active = false;
  uint32_t flushes_max = 0;  ///< posted and not completed; 0: post_flush is not used
  bool fallback = false;     ///< it will carry next to nothing unless other paths fail
  /// What is posted may complete so much later than usual where that saves packets; both ends have
  /// the same.  A fabric whose NICs acknowledge takes no notice.
  Duration ack_leisure{};
  /// For connecting, and for an address that has to be asked for; 0: HA_NCCL_CONNECT_TIMEOUT_MS.
  Duration connect_limit{};
  uint8_t traffic_class = 0;  ///< RoCE: DSCP and ECN bits
  uint8_t service_level = 0;  ///< InfiniBand
  /// The hosts in between, the nearest first, at most hops_max; empty: none, or the fabric's
  /// choice.  Read when the path is made, and not later.
  std::span<const Hop> route;
  /// What both ends know and nobody else: frames that the processor sends carry tags by it.  A
  /// fabric whose devices send takes no notice.
  std::optional<SharedKey> shared;
  uint64_t counted_under = 0;  ///< id of the block of counters that the path's own belong to
  std::string nic;  ///< the local one, as FailureDomain names it; whoever knows it fills it in
  /// What its owner writes from and lets the peer write: it is known where the path is made before
  /// the path has its address; where it cannot be, there is no path.
  std::vector<std::shared_ptr<OwnMemory>> memory;
};

/// Receives what happens on a path, on the path's thread.  Never called from inside a post.
class PathOwner {
 public:
  virtual ~PathOwner() = default;
  virtual void on_completion(const Completion& completion) = 0;
  /// `ready` or `error`; `error` says why and is reported once.
  virtual void on_path_state(Path& path, PathState state, const Error& error) = 0;
  /// address_ready() has become true.  Never called where it is true from the beginning, nor from
  /// inside create_path() or connect().
  virtual void on_path_address(Path& path) { (void)path; }
  /// A host between the two ends says that a cable of its own has no link.  The path goes on, and
  /// carries again when the link is back.
  virtual void on_path_link_down(Path& path, const Error& why) {
    (void)path;
    (void)why;
  }
  /// Nothing has proved for long that a path in `error` is at its end: what is outstanding does not
  /// complete until something does, as what the peer wrote may still land.  Once for each path.
  virtual void on_fence_stuck(Path& path, const Error& error) = 0;
  /// The same earlier, after a quarter of a second: who can do without may abandon() the path.
  virtual void on_fence_late(Path& path) { (void)path; }
  /// The device is through with a path that was abandoned.
  virtual void on_fence_proven(Path& path) { (void)path; }
};

/// See the head of this file.  Destroying a path drops its outstanding work without completions.
class Path {
 public:
  virtual ~Path() = default;
  Path() = default;
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  /// Opaque bytes (at most path_address_max) that the peer's connect() needs.  The side that
  /// connects first should tell them only then: they may say more.  Empty while there are none.
  virtual std::span<const std::byte> local_address() const = 0;
  /// There is an address.  A path that has to ask for it first tells its owner when it is there
  /// (PathOwner::on_path_address), or fails.
  virtual bool address_ready() const { return true; }
  /// Starts connecting; the owner hears `ready` or `error`.  Bad bytes: invalid_argument.  Need not
  /// wait for address_ready().
  virtual Result<void> connect(std::span<const std::byte> peer_address) = 0;
  virtual PathState state() const = 0;
  /// How the failure that moved the path to `error` would end a work request; `flushed` when it was
  /// fail() or the peer.  `ok` before.
  virtual CompletionStatus cause() const = 0;

  /// Posts return ok, again (queue full: retry after a completion), or closed (path in error).
  [[nodiscard]] virtual Errc post_write(const WritePost& post) = 0;
  /// A credit for one write with immediate of the peer's.
  [[nodiscard]] virtual Errc post_receive() = 0;

  /// Reads back; the completion says that earlier arrivals on this path are visible.  A path whose
  /// bytes are written by the CPU has nothing to flush: invalid_usage.
  [[nodiscard]] virtual Errc post_flush(const FlushPost& post) {
    (void)post;
    return Errc::invalid_usage;
  }
  /// The longest single write; longer messages are the caller's to cut.
  virtual uint32_t write_bytes_max() const { return UINT32_MAX; }

  /// Of this path; the same for all its life.
  virtual const PathTraits& traits() const {
    static constexpr PathTraits any;
    return any;
  }
  bool may_reorder() const { return traits().may_reorder; }

  /// Adds all that this path fails with, as far as it is known: the peer's NIC from connect() on,
  /// hosts in between as soon as the fabric knows them.
  virtual void failure_domains(FailureDomains& domains) const { (void)domains; }

  /// Grows with what the peer has acknowledged of a post that is not complete yet, where the path
  /// sees that.  Only differences mean something.
  virtual uint64_t progress() const { return 0; }

  /// A hint: whoever drives this path may fall silent.  What the peer waits for (acknowledgements)
  /// leaves before the current pass ends instead of waiting for something to travel on.
  virtual void flush_acks() {}

  /// Moves to error: everything outstanding completes as flushed; when all of it has, nothing of
  /// the peer's is written any more.  The owner is told through its completions, so whoever has to
  /// know has a receive posted.
  virtual void fail(const Error& why) = 0;
  /// In error: waits until nothing more of the peer's is taken, a few milliseconds at most, as a
  /// device may hang.  For whoever gives memory back and cannot wait for completions.
  virtual void await_stop() {}
  /// In error, after on_fence_late(): what is outstanding completes now, as flushed, although the
  /// device may still read it, and write what the peer had sent before that one's side was closed.
  virtual void abandon() {}
  /// In error: nothing of the peer's can be under way but what the own device has taken already.
  virtual void on_peer_stopped() {}

  /// One line for logs: provider, addresses, MTU.
  virtual std::string describe() const = 0;
};

inline constexpr size_t path_address_max = 512;

/// A path together with what keeps its port alive.  Destroy both on the worker's thread, at the end
/// of a turn (an actor's destructor is such a place).
struct OwnedPath {
  std::shared_ptr<void> port;
  std::unique_ptr<Path> path;
  void reset() {
    path.reset();
    port.reset();
  }
};

}  // namespace nccl_ha::fabric
