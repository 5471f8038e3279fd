// Connection actors: one per NCCL connection and side.  They own the control stream and the path,
// carry requests of the shared channel to the path and publish what became of them.
//
// Life: handshake (hello, welcome, connectivity check) -> ready -> closing -> gone, or failed from
// anywhere.  A failure is final: published once, told to the peer, and what every later call gets.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/channel.h"
#include "actors/control.h"
#include "actors/control_port.h"
#include "actors/immediate.h"
#include "actors/lane.h"
#include "actors/nic_monitor.h"
#include "actors/rejoin.h"
#include "ha/close_linger.h"
#include "ha/control_sequencer.h"
#include "ha/retry_budget.h"
#include "ha/shadow.h"
#include "runtime/actor.h"
#include "runtime/context.h"
#include "runtime/fabric/provider.h"
#include "runtime/stream.h"
#include "runtime/timer_wheel.h"

namespace nccl_ha {

class Engine;

/// What both sides do alike.
class Connection : public Server,
                   public Actor,
                   protected StreamOwner,
                   protected NicMonitor::Member,
                   private ControlPort::Member,
                   private Rejoin::Owner {
 public:
  Connection(fabric::Provider& provider, Engine& engine, size_t worker);
  ~Connection() override;

  void start(Context& context) override;
  void stop() override;
  bool lingers() const override { return !finished_; }
  void on(const Message& message) override;

 protected:
  virtual Channel* channel() = 0;
  virtual void begin() = 0;  ///< start of the handshake
  virtual void on_doorbell() = 0;
  void on_close();  ///< the caller closes
  virtual void on_control(const ControlReader::Message& message) = 0;
  /// The first paths have come up or failed: from now on what fails is replaced.
  virtual void on_paths_ready() = 0;
  /// There is a path: the caller is told.  Once.
  virtual void on_usable() = 0;
  virtual void on_failure(const Error& error) { (void)error; }
  virtual void on_deadline();  ///< the handshake took too long

  // What becomes of a lane once the connection is ready.  Without failover none of it is called.
  virtual void on_lane_ready(size_t lane) = 0;
  virtual void on_lane_failed(size_t lane, const Error& error) = 0;
  virtual void on_lane_drained(size_t lane) = 0;
  /// It can be asked what its device is able to do.
  virtual void on_path_made(const Lane& lane) { (void)lane; }

  /// What this side reads and writes to the peer's memory, and what the peer writes.
  struct Tables {
    void* source = nullptr;
    size_t source_bytes = 0;
    void* written = nullptr;
    size_t written_bytes = 0;
  };
  virtual Tables tables() = 0;

  /// Makes `count` lanes at `attachment_`; `local` is the stream's address.  With failover one
  /// whose port or address is away begins without a path.
  Result<void> make_paths(const sockaddr_storage& local, size_t count, bool active);
  /// A new path for a lane, in place of the old one if there is one, where the lane says.
  Result<void> make_path(Lane& lane, bool active, Duration connect_limit);
  /// The same for a lane that is to be used again.
  Result<void> remake_path(Lane& lane, bool active);
  Result<void> connect_paths(const std::vector<PathEnd>& peers, uint32_t table_key);
  Result<void> connect_path(Lane& lane, const PathEnd& peer, uint32_t table_key);
  PathEnd path_end(Lane& lane) const;
  std::vector<PathEnd> path_ends();
  /// Both sides are ready: lanes for paths over other NICs, which there are none of yet.
  void add_shadow_lanes();
  /// Takes a lane into use; its path has said that it carries traffic.
  void take_into_use(size_t lane);
  size_t lane_of(const fabric::Path* path) const {
    size_t lane = 0;
    if (lanes_.front().owned.path.get() != path) [[unlikely]] {
      while (lane + 1 < lanes_.size() && lanes_[lane].owned.path.get() != path) {
        ++lane;
      }
    }
    return lane;
  }
  bool any_usable() const { return any_usable(0, lanes_.size()); }
  bool any_usable(size_t from, size_t to) const;
  bool primary_usable() const { return any_usable(0, primaries_); }
  /// Closes this side of a lane for good; its owner hears on_lane_drained().
  void take_down(size_t lane, const Error& why);
  void look_whether_drained(size_t lane);
  /// Memory cannot be registered with a shadow's device: the lane fails, after the caller's turn.
  const Error& reject(size_t lane, const Error& why);
  void tell_shortage(const Error& why);
  /// What the peer is told of a lane that failed.
  PathNotice notice_of(size_t lane, const Error& why) const;
  /// Starts or ends the time that the connection may be without a path.
  void watch_budget(bool in_need);
  void count_down(size_t lane);
  void log_back(size_t lane);
  /// False, and the connection has failed: it is malformed, or about a path that is not ours.
  template <class Said>
  bool is_of_ours(const std::optional<Said>& said) {
    if (!said) {
      fail_connection(fail(Errc::remote, "malformed message about a path on the control stream"));
      return false;
    }
    return known_path(said->path);
  }
  bool known_path(size_t path);
  /// Where paths of this connection may begin or end on this host, the primaries' marked.
  std::vector<ha::Rail> rails() const;
  /// The keys of own memory on a lane's device.
  Result<fabric::Registration> register_memory(const fabric::Attachment& at, void* base,
                                               size_t bytes);
  bool post_credit(Lane& lane);  ///< a receive for the peer's next immediate
  /// The peer has used one; it is replaced later, together with others.
  void replace_credit(Lane& lane) {
    --lane.credits_open;
    if (++lane.credits_owed == credits_together) [[unlikely]] {
      post_owed_credits(lane);
    }
  }
  void fail_paths(const Error& why);
  /// Over the stream only, without a number: the handshake.
  void send_plain(const std::vector<std::byte>& frame);
  /// Over every way there is.
  void send_control(std::vector<std::byte> frame);
  /// Tells the peer what has been taken of its messages.
  void send_confirm();
  void confirm_on(Lane& lane);
  /// True: it was about control messages, and is dealt with.
  bool on_control_completion(const fabric::Completion& completion, Lane& lane) {
    const bool data =
        completion.kind == fabric::CompletionKind::write
            ? !lane.control_due && (completion.id < answer_id || completion.id > control_id)
            : completion.kind != fabric::CompletionKind::receive_immediate ||
                  !ControlMark::marks(completion.immediate);
    return !data && take_control_completion(completion, lane);
  }
  /// Gives heartbeats from now on.
  void start_heartbeats();
  /// Gives one on every path that is in use.
  void probe_usable();
  /// Something was posted: from now on it is looked at more often whether it is answered.
  void watch_work() {
    if (watched_idle_) [[unlikely]] {
      watched_idle_ = false;
      arm_heartbeat();
    }
  }
  void arm_deadline(Duration in);
  void disarm_deadline();
  /// First failure: log, publish, tell the peer, tear down.
  void fail_connection(const Error& error, bool tell_peer = true);
  /// Ends the actor; the stream lingers by itself until what was written is out.
  void finish();
  /// The connection is over; `words` (empty: confirms what was heard) leave over the stream and all
  /// paths that work, which go on for a bounded time.  `ends`: the actor ends with them.
  void part(std::vector<std::byte> words, const Error& why, bool ends);
  /// Memory that the caller may have back could be read or written through that lane.
  virtual bool exposed(const Lane& lane) const = 0;
  bool ends_after_linger() const { return ends_after_linger_; }
  /// Of a path, after the end.
  void on_late_completion(const fabric::Completion& completion);
  /// For messages: address, host and process as far as they are known.
  std::string peer_text() const;
  /// Of the first paths, for logs.
  std::string paths_text();
  void end_handshake();  ///< if all first paths have come up, failed, or could not be made
  /// Where it would be if it were connected.
  virtual std::string wanted_peer() const { return "a peer"; }
  virtual void on_peer_gone(const Error& error);
  /// A message for the peer waits to be confirmed.
  virtual void on_unconfirmed() {}
  /// The stream is gone, which says nothing of the peer.
  virtual void on_stream_lost(const Error& why) = 0;
  /// A new one has taken its place.
  virtual void on_stream_back() {}
  /// May the peer's rejoin become the connection's stream?
  virtual bool takes_streams() const = 0;
  /// What the peer is told when this side closes.
  virtual CloseNotice last_words() const { return {}; }
  /// Where this side takes streams or probes; makes the port.
  RejoinPoint rejoin_point();
  /// The peer's last words: no more than what it said first.
  void fail_as_told(const std::optional<Refusal>& refusal);
  /// Goes on over another stream: writes what the peer has not confirmed, and reads what came.
  void take_stream(std::unique_ptr<Stream> stream, ControlReader reader);
  void read_stream();
  /// Ends a stream that another one has taken the place of.
  static void retire_stream(std::unique_ptr<Stream> stream);
  /// The peer has spoken without saying anything: it is ready.
  virtual void on_confirm() {}
  void on_link_up(const std::string& interface) override;
  /// Another fabric than the connection's own.
  bool is_fallback(const Lane& lane) const {
    return lane.shadow && lane.at.kind != attachment_.kind;
  }
  /// There is something of another fabric among `places_`, and of the own one as well.
  bool backs_with_others() const;
  std::string interface_of(const Lane& lane) const;

  void write_stream(std::span<const std::byte> frame);
  /// The peer may have taken less than all of this.
  void write_unconfirmed(Stream& stream) override;
  bool any_unconfirmed() const { return sequencer_.first_open() != sequencer_.next(); }

  // StreamOwner
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  // PathOwner
  void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) override;
  void on_fence_failed(fabric::Path& path, const Error& error) override;

  fabric::Provider& provider_;
  Engine& engine_;
  const size_t worker_index_;
  Context* context_ = nullptr;
  std::unique_ptr<Stream> stream_;
  ControlReader reader_;
  ha::ControlSequencer sequencer_;
  Rejoin rejoin_{*this};
  fabric::Attachment attachment_;
  sockaddr_storage local_{};           ///< the stream's
  std::vector<fabric::Place> places_;  ///< what rails() tells of
  std::vector<Lane> lanes_;            ///< the primaries first
  size_t primaries_ = 0;
  uint8_t shadows_ = 0;  ///< lanes over other NICs, as agreed
  bool backup_ = false;  ///< both sides replace paths that fail
  uint8_t traffic_class_ = 0;
  uint8_t service_level_ = 0;
  bool flushes_ = false;       ///< paths will be asked to flush
  bool flushes_acks_ = false;  ///< inline mode, with a path whose acknowledgements software sends
  uint64_t domain_ = 0;
  uint32_t receives_ = 0;
  std::string peer_host_;  ///< empty: it has not said
  uint32_t peer_process_ = 0;
  ha::RetryBudget budget_;
  std::string need_;     ///< why the last path failed
  bool ready_ = false;   ///< the handshake's paths are settled
  bool told_ = false;    ///< and the caller knows
  bool failed_ = false;  ///< or closed, by either side: nothing goes on but the linger
  bool finished_ = false;
  ha::CloseLinger linger_;

 private:
  // ControlPort::Member
  void on_call(ControlType call, std::unique_ptr<Stream> stream, ControlReader reader) override;
  // Rejoin::Owner
  void on_attempt() override { probe_usable(); }
  uint64_t life() const override;
  void on_rejoined(std::unique_ptr<Stream> stream, ControlReader reader) override;
  void on_peer_failed(const Refusal& why) override { fail_as_told(why); }
  void on_peer_dead(const Error& why) override { on_peer_gone(why); }

  void on_budget_spent();
  void fail_early(Lane& lane, const Error& why);
  void tell_usable();
  bool take_early(const ControlReader::Message& message);
  void deliver(const ControlReader::Message& message);
  void read_inbox();
  bool hears() const { return !finished_ && (!failed_ || linger_.under_way()); }
  void hear_last(const ControlReader::Message& message);
  void look_whether_over();
  void end_linger(const Error& why);
  void end_stream();
  Result<void> equip(Lane& lane);
  void post_owed_credits(Lane& lane);
  bool take_control_completion(const fabric::Completion& completion, Lane& lane);
  void push_control(Lane& lane);
  /// A write without bytes that carries what was taken of the peer's messages.
  [[nodiscard]] Errc post_mark(Lane& lane, uint64_t id);
  void on_heartbeat_timer();
  void arm_heartbeat();
  void on_link_down(const std::string& interface) override;
  void on_suspicion(const std::string& interface, const std::string& peer) override;
  void check_liveness(size_t at, bool heartbeat_due);
  void give_up(size_t at, const Moment& now);
  uint64_t evidence_beside(const Lane& lane) const;
  void probe_all();
  void send_heartbeat(Lane& lane);
  bool other_usable(size_t lane) const {
    return any_usable(0, lane) || any_usable(lane + 1, lanes_.size());
  }

  static constexpr uint32_t credits_together = 8;
  static constexpr uint64_t control_id = UINT64_MAX - 1;
  static constexpr uint64_t mark_id = UINT64_MAX - 2;
  static constexpr uint64_t heartbeat_id = UINT64_MAX - 3;
  static constexpr uint64_t answer_id = UINT64_MAX - 4;  ///< a mark, the last one

  struct OwnMemory {
    fabric::Registration registration;
    const void* base;
  };
  std::vector<OwnMemory> memory_;
  std::deque<std::vector<std::byte>> inbox_;  ///< control messages that came over paths
  bool confirm_due_ = false;
  uint64_t stream_messages_ = 0;  ///< taken from streams
  std::vector<std::vector<std::byte>>
      early_messages_;  ///< of the peer's, before this side was ready
  std::string peer_address_;
  std::shared_ptr<ControlPort> port_;  ///< where the peer may come back; may be null
  uint64_t rejoin_token_ = 0;
  Error failure_{};  ///< for a peer that comes back after it
  Timer heartbeat_timer_;
  Instant heartbeat_period_{};  ///< in which the last ones were given
  bool watched_idle_ = false;
  std::shared_ptr<NicMonitor> nics_;
  Timer deadline_;  ///< of the handshake
  Timer linger_timer_;
  bool ends_after_linger_ = false;  ///< the caller has closed: the actor ends with the linger
  Timer budget_timer_;
  Error rejection_;  ///< the last one
  bool shortage_told_ = false;
  std::array<Instant, lanes_max> down_since_{};
};

}  // namespace nccl_ha
