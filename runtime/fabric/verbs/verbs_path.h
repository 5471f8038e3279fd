// A path over an RC queue pair.  Made by Port::create_path.
//
// The device makes its queue pair while others have work to do (conductor.h); then it has an
// address.
//
// Connecting: both sides move their queue pair to RTS as soon as they know the peer's address.  The
// active side then writes a small and a full-size probe; the passive side answers with two of its
// own.  So `ready` means that packets of the path MTU get through both ways, and
// nothing is sent before the peer can take it (a packet that comes too early costs a whole
// retransmission timeout).
//
// What it is made of has a class each: the ends, both rings, the queue of flushes, the handshake
// and the fence.  The path leads them, and tells its owner and its port.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <span>
#include <string>

#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/fence.h"
#include "runtime/fabric/verbs/flush_queue.h"
#include "runtime/fabric/verbs/handshake.h"
#include "runtime/fabric/verbs/path_ends.h"
#include "runtime/fabric/verbs/path_environment.h"
#include "runtime/fabric/verbs/path_pairs.h"
#include "runtime/fabric/verbs/receive_ring.h"
#include "runtime/fabric/verbs/send_ring.h"
#include "runtime/fabric/verbs/silence.h"

namespace nccl_ha::fabric::verbs {

class VerbsPath final : public Path {
 public:
  VerbsPath(PathEnvironment& environment, const PathOptions& options, PathOwner* owner,
            const PathPlace& place, const GidPreference& gid,
            std::shared_ptr<CompletionQueue> completions);
  ~VerbsPath() override;

  std::span<const std::byte> local_address() const override { return ends_.local_bytes(); }
  bool address_ready() const override { return pair_ != nullptr && !ece_open_; }
  Result<void> connect(std::span<const std::byte> peer_address) override;
  PathState state() const override { return state_; }
  CompletionStatus cause() const override { return cause_; }
  [[nodiscard]] Errc post_write(const WritePost& post) override;
  [[nodiscard]] Errc post_receive() override;
  [[nodiscard]] Errc post_flush(const FlushPost& post) override;
  uint32_t write_bytes_max() const override { return write_max_; }
  const PathTraits& traits() const override { return traits_; }
  void failure_domains(FailureDomains& domains) const override;
  void fail(const Error& why) override;
  void await_stop() override;
  void abandon() override;
  void on_peer_stopped() override { fence_.on_peer_stopped(); }
  std::string describe() const override { return ends_.describe(); }

  /// Null while there is none.
  ibv_qp* queue_pair() const { return pair_; }
  const PathEnds& ends() const { return ends_; }
  /// One of its queue pairs has that address.
  bool has_pair(const void* pair) const { return pair_ == pair || flushes_.pair() == pair; }

  // For the port, which makes the path, takes completions out of queues and leads fences on.
  /// The device has done that.  May end the path.
  void on_done(DoneList::Step step);
  const PathPlace& place() const { return place_; }
  /// Where its work completes; null while it has no queue pair.
  ibv_cq* completions() const { return completions_; }
  PathLinks& links() { return links_; }
  void report_state();
  /// Posts what waits for the doorbell.
  void post_waiting();
  void post_held_receives();
  void on_completion(const ibv_wc& wc, const WorkId& id);
  /// Is there unacknowledged work?  Breaks the path when that has been so for too long.
  bool check_progress(const Moment& now);
  bool fence_moves() const { return fence_.moves(all_returned()); }
  /// After it has taken everything out of the completion queue.  May end the path.
  void move_fence();
  bool fence_over() const { return fence_.closed(); }

 private:
  using Internal = SendRing::Internal;

  // making and connecting
  PathPairs::Plan plan(const GidPreference& gid, std::shared_ptr<CompletionQueue> queue) const;
  /// A command of the conductor's about this path, with what it is about.
  template <class Command>
  void order(Conductor::Rank rank, DoneList::Step step, Command command);
  /// The same; what it returns is the answer.  `allowed` as in Conductor::add().
  template <class Command>
  std::shared_ptr<const Answer> order_end(Command command, Duration allowed = {});
  Duration connect_limit() const;
  void on_opened();
  /// This side has a queue pair and knows the peer's.
  void resolve();
  void check_resolution();
  void on_ready();
  void post_probes();
  void check_ready();
  void on_handshake_timer();

  // posting
  /// Whether a post can be taken now.
  Errc send_room() const;
  /// A probe or a marker, which the caller completes before the turn ends.
  ibv_send_wr& post_internal(Internal what, std::span<const Gather> gathers);
  void ring_doorbell();

  // completions
  void on_send(const ibv_wc& wc, uint32_t position);
  void on_receive(const ibv_wc& wc, uint32_t position);
  void on_flush(const ibv_wc& wc, uint32_t position);
  void complete_send(CompletionStatus status);
  void finish_send(CompletionStatus status);
  /// The device reports a work request as failed, and with it the path.
  void fail_for(CompletionStatus status, const ibv_wc& wc, const SendRing::Slot* slot);
  Error explain(const ibv_wc& wc, const SendRing::Slot* slot) const;

  // breaking
  void break_path(CompletionStatus cause, const Error& why);
  /// The device refused work.
  void break_for(const char* what, int error);
  bool all_returned() const;
  uint32_t returned() const { return sends_.head() + receives_.head() + flushes_.head(); }
  void on_fence(Fence::Outcome outcome);
  void on_fenced();
  void take_back();

  PathEnvironment& env_;
  PathOwner* owner_;
  const PathOptions options_;
  const PathPlace place_;
  PathLinks links_{*this};
  PathEnds ends_;
  PathTraits traits_;
  uint32_t write_max_ = 0;
  uint32_t inline_max_ = 0;
  PathState state_ = PathState::idle;
  Error error_;
  CompletionStatus cause_ = CompletionStatus::ok;
  bool ece_open_ = false;   ///< the address is to say what both devices can do
  bool connected_ = false;  ///< the device was told of the peer's queue pair
  bool presumed_ = false;   ///< flushed work was all that told of a failure so far
  Handshake handshake_;
  std::shared_ptr<PathPairs> pairs_;
  // Of them; null while there is none.  The queue pair may be gone once the path has failed.
  ibv_qp* pair_ = nullptr;
  ibv_cq* completions_ = nullptr;
  Scratch* scratch_ = nullptr;
  FlushQueue flushes_;
  SendRing sends_;
  ReceiveRing receives_;
  Silence silence_;
  Fence fence_;
};

}  // namespace nccl_ha::fabric::verbs
