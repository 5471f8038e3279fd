// Until when a broken queue pair may still touch memory, and who says so.
//
// In ERR the device takes nothing of the peer's any more and gives back what it was given; when all
// of that is here, nothing can land.  Some devices keep a part: Soft-RoCE never looks again at
// receives that are posted after the change, whence nothing is posted any more.  Then the queue
// pair is destroyed: once that has returned nothing can land either.  Whichever of the two comes
// first is enough: Soft-RoCE destroys a queue pair only when the interface has let go of its
// packets, and one without a link keeps them for seconds.  Both count only if the firmware answers
// a question after that (fence_proof.h); where it does not, the fence waits until the kernel has
// taken the device away.  Time by itself proves nothing: who does not want to wait for that, and
// needs no proof, abandons the path; the fence goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/verbs/conductor.h"
#include "runtime/fabric/verbs/fence_proof.h"
#include "runtime/fabric/verbs/options.h"
#include "runtime/fabric/verbs/port_services.h"

namespace nccl_ha::fabric::verbs {

class Fence {
 public:
  /// What came of a step.
  enum class Outcome : uint8_t {
    open,      ///< nothing, yet
    must_ask,  ///< all work is back: the firmware is to be asked whether it lives, confirm() that
    must_destroy,  ///< the queue pair is to be destroyed: await() that
    closed,        ///< proof() says why nothing moves any more
    late,          ///< still open after a while, told again and again
    stuck,         ///< the same after long: error() says why
  };

  /// `conductor`: that of the device; null: its commands never hang.
  Fence(const PortServices& services, const Options& options, const DeviceHealth& device,
        const Conductor* conductor = nullptr)
      : services_(services), options_(options), device_(device), conductor_(conductor) {}
  ~Fence();
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  /// `on_timer`: check() is to be called.
  void bind(void (*on_timer)(void* owner), void* owner) { timer_.bind(on_timer, owner); }

  /// The path is broken.  `returned` counts what has come back; only differences mean something.
  /// `stop`: the queue pair is to go to ERR; where it does not, nothing need come back, and what
  /// does proves nothing.  Null: that could not even be asked for.
  void begin(uint32_t returned, std::shared_ptr<const Answer> stop);
  /// The same of a path that neither its peer nor a post could reach yet.
  void begin_unused();

  /// There is something for move() to do.
  bool moves(bool all_returned) const;
  /// The completion queue was found empty after moves() became true.  `all_returned`: everything
  /// that the device was given has come back.
  Outcome move(bool all_returned);
  void confirm(std::shared_ptr<const Answer> question);
  void await(std::shared_ptr<const Answer> destruction);
  Outcome check(uint32_t returned);
  /// What is outstanding is not waited for any more, so that its return proves nothing.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }
  /// The peer's side is closed.  From then on there is at most what the device had taken from the
  /// network, and firmware that hangs for Options::hung_after in a command, while it answers none
  /// of this fence's and nothing comes back, is taken to have lost that.
  void on_peer_stopped();
  /// Before each move().
  void look_for_life(uint32_t returned);

  /// Nothing moves any more, and everything is to be reported.
  bool closed() const { return state_ == State::closed; }
  FenceProof proof() const { return proof_; }
  /// As begin() was told.
  const std::shared_ptr<const Answer>& stop() const { return stop_; }
  int error() const { return error_; }
  /// Since begin(), and how much of that this process did not run.
  Duration took() const { return services_.clock->now() - begun_.now; }
  Duration lost() const { return services_.lost_time() - begun_.lost; }

 private:
  enum class State : uint8_t {
    none,      ///< the queue pair is not broken
    flushing,  ///< goes to ERR; its work comes back
    overdue,   ///< not all of it did in time
    waiting,   ///< for what was asked, for a destruction, or for the kernel
    closed,
  };
  bool stopped() const { return stop_ && stop_->confirmed(); }
  bool cannot_stop() const { return stop_ && stop_->over() && !stop_->confirmed(); }
  bool may_ask(bool all_returned) const {
    return all_returned && !abandoned_ && stopped() && !question_;
  }
  /// Work will not come back, or that says nothing.
  bool in_vain() const;
  FenceProof proven(bool all_returned) const;
  bool silent() const;
  void begin_silence();
  /// The same is asked of it once more: later, as firmware may come back, and soon where the host
  /// or the device was short of something.
  void ask_anew();
  Outcome check_flush(uint32_t returned);
  Outcome check_waiting();
  void wait();

  const PortServices& services_;
  const Options& options_;
  const DeviceHealth& device_;
  const Conductor* const conductor_;
  State state_ = State::none;
  bool given_ = true;
  Moment begun_{};
  uint32_t seen_returned_ = 0;
  uint32_t last_returned_ = 0;
  Duration seen_lost_{};
  std::shared_ptr<const Answer> stop_;
  std::shared_ptr<const Answer> question_;  ///< asked when all work was back
  std::shared_ptr<const Answer> destruction_;
  Instant deadline_{};   ///< from when on it is late; zero: nothing was asked yet, or it is anew
  Instant ask_again_{};  ///< where what was asked came to nothing for want of something
  bool told_ = false;    ///< that it is stuck
  Instant late_again_{};
  bool abandoned_ = false;
  std::optional<Moment> silent_since_;  ///< and the peer has stopped
  FenceProof proof_ = FenceProof::none;
  int error_ = 0;
  Timer timer_;
};

}  // namespace nccl_ha::fabric::verbs
