// A path over an RC queue pair.  Made by Port::create_path.
//
// Connecting: both sides move their queue pair to RTS as soon as they know the peer's address.  The
// active side then writes a small and a full-size probe; the passive side answers with two of its
// own.  So `ready` means that packets of the path MTU get through both ways, and nothing is sent
// before the peer can take it (a packet that comes too early costs a whole retransmission timeout).
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
#include "runtime/fabric/verbs/queue_pair.h"
#include "runtime/fabric/verbs/receive_ring.h"
#include "runtime/fabric/verbs/send_ring.h"
#include "runtime/fabric/verbs/silence.h"

namespace nccl_ha::fabric::verbs {

class VerbsPath final : public Path {
 public:
  VerbsPath(PathEnvironment& environment, const PathOptions& options, PathOwner* owner,
            const PathPlace& place);
  ~VerbsPath() override;

  std::span<const std::byte> local_address() const override { return ends_.local_bytes(); }
  bool address_ready() const override { return !ece_open_; }
  Result<void> connect(std::span<const std::byte> peer_address) override;
  PathState state() const override { return state_; }
  CompletionStatus cause() const override { return cause_; }
  [[nodiscard]] Errc post_write(const WritePost& post) override;
  [[nodiscard]] Errc post_send(const SendPost& post) override;
  [[nodiscard]] Errc post_receive(const ReceivePost& post) override;
  [[nodiscard]] Errc post_flush(const FlushPost& post) override;
  uint32_t write_bytes_max() const override { return write_max_; }
  const PathTraits& traits() const override { return traits_; }
  void failure_domains(FailureDomains& domains) const override;
  void fail(const Error& why) override;
  std::string describe() const override { return ends_.describe(); }

  ibv_qp* queue_pair() const { return pair_.get(); }
  const PathEnds& ends() const { return ends_; }
  /// One of its queue pairs has that address.
  bool has_pair(const void* pair) const {
    return pair_.get() == pair || flushes_.pair().get() == pair;
  }

  // For the port, which makes the path, takes completions out of queues and leads fences on.
  /// Makes the queue pair; without success the path is of no use.
  Result<void> open(const GidPreference& want);
  const PathPlace& place() const { return place_; }
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
  Result<void> make_queue_pair();
  Result<void> post_probe_receives();
  bool both_know_ece() const { return ends_.peer().has_ece && ends_.local().has_ece; }
  void query_ece();
  /// The peer's address is known to be reachable: the queue pair is made ready, and tried out.
  Result<void> make_ready();
  void check_resolution();
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

  ibv_pd* protection() const { return domain_ ? domain_->get() : env_.device->pd(); }
  Scratch& scratch() { return domain_ ? domain_->scratch() : env_.scratch; }

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
  bool ece_open_ = false;  ///< the address is to say what both devices can do
  bool presumed_ = false;  ///< flushed work was all that told of a failure so far
  Handshake handshake_;
  std::shared_ptr<ProtectionDomain> domain_;  ///< null: the device's own
  FlushQueue flushes_;
  QueuePair pair_;  // gone before that of the flushes
  SendRing sends_;
  ReceiveRing receives_;
  Silence silence_;
  Fence fence_;
};

}  // namespace nccl_ha::fabric::verbs
