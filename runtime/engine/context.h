// Everything an actor may use: time, randomness, timers, streams, its worker.  Owner thread only.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/config.h"
#include "runtime/base/key_file.h"
#include "runtime/base/random.h"
#include "runtime/base/secret.h"
#include "runtime/base/tick_clock.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/poller.h"
#include "runtime/engine/shared_objects.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/peer_streams.h"
#include "runtime/streams/stream.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/recorder.h"

namespace nccl_ha {

class Worker;

class Context {
 public:
  virtual ~Context() = default;

  /// Read at most once per turn.
  Instant now() { return turn_clock_.now(); }
  /// now() to TickClock::error_max, for what happens with each message: where ticks tell it no
  /// clock is read, and the turn does not know the time.
  Instant about_now() {
    return ticks_ && !turn_clock_.was_read() ? tick_clock_.now() : turn_clock_.now();
  }
  /// now(), with what tells how long this process ran up to then.
  Moment moment() { return turn_clock_.moment(); }
  /// How much later turns came than they were due, all together.
  const LostTime& lost_time() { return turn_clock_.lost(); }
  /// now() for those that take a Clock.
  Clock& turn_clock() { return turn_clock_; }
  /// A fresh reading, for what must not be a turn old.
  Clock& clock() { return clock_; }
  /// For jitter; what an unknown peer must not guess is drawn from secrets().
  Random& random() { return random_; }
  SecretSource& secrets() { return secrets_; }
  TimerWheel& timers() { return timers_; }
  Recorder& recorder() { return recorder_; }
  /// The worker's own; what lives on it has its blocks below that.
  const CounterBlock<WorkerCounters>& counters() const { return counters_; }
  const Config& config() const { return config_; }
  StreamFactory& streams() { return *streams_; }
  /// To and from processes of the same job.
  PeerStreams peer_streams() { return {*streams_, keys_, config_.encrypt, secrets_}; }
  Worker& worker() { return worker_; }
  uint32_t worker_index() const { return index_; }

  /// In a turn after which the next one may be a while away: one of a caller's, or of the thread
  /// that drives while no caller does.
  bool callers_drive() const { return callers_drive_; }
  void set_callers_drive(bool on) { callers_drive_ = on; }  ///< the executor's

  /// What the actors of this worker share.
  SharedObjects& shared() { return shared_; }

  /// Adopts an actor on this worker; start() runs before this returns.  An error when the worker
  /// has its greatest number of them: the actor is destroyed then.
  virtual Result<ActorId> add_actor(std::unique_ptr<Actor> actor) = 0;
  /// No message reaches it any more; destroyed at the end of this turn.
  virtual void remove_actor(ActorId id) = 0;
  virtual void add_poller(Poller* poller) = 0;
  virtual void remove_poller(Poller* poller) = 0;
  /// To an actor of this worker, delivered later in this turn or in the next.
  virtual void send_self(const Message& message) = 0;
  /// For the next `turns` turns streams are looked at every time: a handshake is under way.
  virtual void request_stream_turns(unsigned turns) = 0;
  /// Aborts in debug builds when the caller is not the owner.
  virtual void assert_owner() const = 0;

 protected:
  /// `ticks`: those of the processor follow `clock`.
  Context(Worker& worker, uint32_t index, const Config& config, Clock& clock, bool ticks,
          uint64_t seed, SecretSource& secrets, std::shared_ptr<KeyFile> keys,
          const CounterPlace& place)
      : worker_(worker),
        index_(index),
        config_(config),
        clock_(clock),
        turn_clock_(clock),
        ticks_(ticks),
        random_(seed),
        secrets_(secrets),
        keys_(std::move(keys)),
        timers_(turn_clock_.now()),
        counters_(place, "worker " + std::to_string(index)),
        recorder_(counters_.place(), static_cast<size_t>(config.record_events)) {}

  Worker& worker_;
  uint32_t index_;
  const Config& config_;
  Clock& clock_;
  TurnClock turn_clock_;
  const bool ticks_;
  TickClock tick_clock_{clock_};
  Random random_;
  SecretSource& secrets_;
  const std::shared_ptr<KeyFile> keys_;  ///< of the job; null: it has none
  TimerWheel timers_;
  CounterBlock<WorkerCounters> counters_;
  Recorder recorder_;
  std::unique_ptr<StreamFactory> streams_;
  SharedObjects shared_;
  bool callers_drive_ = false;
};

}  // namespace nccl_ha
