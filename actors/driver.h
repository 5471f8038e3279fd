// What drives a connection for the thread that calls NCCL's entry points.
//
// Where callers drive (Engine) the caller turns the connection's worker itself, and what it
// submitted is posted in that very call; where its thread does, or somebody else is turning it, the
// caller leaves news and rings.  Nothing here blocks, allocates or, but for the wake-up of a thread
// that sleeps, enters the kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "actors/connection_message.h"
#include "actors/request.h"
#include "actors/server.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/worker.h"

namespace nccl_ha {

/// One for each side of a connection.
class Driver {
 public:
  /// `answered_late`: what is submitted waits for the peer's caller.
  Driver(Worker& worker, Engine& engine, bool answered_late)
      : engine_(engine),
        slot_(engine.slot_of(worker)),
        recorders_(engine.caller_recorders()),
        worker_index_(worker.context().worker_index()),
        answered_late_(answered_late) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Caller's side.
  /// Tells where the actor lives; before anything below.
  void attach(ActorId actor, Address<Message>&& address) {
    actor_ = actor;
    address_ = std::move(address);
  }
  /// Callers may have to drive the worker, or always do.
  bool callers_turn() const { return slot_ != nullptr; }
  /// For the flight recorder, as trace_request() says `what`.  Before submit(), and when test()
  /// tells for the first time that a request is done.
  void note_asked(uint64_t group, uint64_t what) {
    if (CallerRecorder* mine = recorders_ ? recorders_->mine() : nullptr) {
      mine->note_asked(actor_.index, worker_index_, group, what);
    }
  }
  void note_noticed(uint64_t group, uint64_t what) {
    if (CallerRecorder* mine = recorders_ ? recorders_->mine() : nullptr) {
      mine->note_noticed(actor_.index, worker_index_, group, what);
    }
  }
  /// Requests lie in the channel's ring.
  void submit() {
    if (slot_ == nullptr) {
      ring(CallerNews::submitted);
    } else {
      serve_inline();
    }
  }
  /// The connection fails: the caller tried to send more than the peer's receive holds.
  void report_oversize() { say(CallerNews::oversize); }
  /// The last call.
  void close() { say(CallerNews::close); }
  /// The actor gives up path number `path` and replaces it.  False: no room now.
  [[nodiscard]] bool suspect(uint32_t path);
  /// Turns the connection's worker, unless its thread does.
  void turn() {
    if (slot_ != nullptr) [[likely]] {
      static_cast<void>(engine_.turn(*slot_, caller_));
    }
  }
  /// For who waits for the end of one request.
  void wait_for(const std::atomic<RequestState>& state) {
    if (slot_ != nullptr) [[likely]] {
      engine_.turn_for(
          *slot_, caller_, &state, [] { return false; },
          [&] { return state.load(std::memory_order_relaxed) != RequestState::pending; });
    }
  }
  /// For a sender without a place for its message: a turn like that, but if one is found in memory
  /// nothing else is looked at.  `there()`: the place is known by now.
  template <class There>
  void wait_for_cts(There&& there) {
    if (slot_ != nullptr) [[likely]] {
      engine_.turn_for(
          *slot_, caller_, this, [this] { return server_ != nullptr && server_->poll_cts(); },
          std::forward<There>(there));
    }
  }

  // Actor's side.
  /// Who takes submissions without a message; nullptr: nobody.
  void serve_by(Server* server) { server_ = server; }
  Server* server() const { return server_; }  ///< whoever turns the worker
  /// CallerNews that were left since it was asked last; with every message.  What finds the mailbox
  /// full is not lost so: the messages that fill it are this caller's own, and each of them makes
  /// the actor ask.
  uint32_t take_news() { return news_.exchange(0, std::memory_order_acq_rel); }

 private:
  void ring(CallerNews news) {
    const auto bit = static_cast<uint32_t>(news);
    if (news_.fetch_or(bit, std::memory_order_acq_rel) == 0) {
      send_doorbell();
    }
  }
  void say(CallerNews news) {
    ring(news);
    turn();
  }
  void serve_inline();
  [[gnu::noinline]] void send_doorbell();

  Engine& engine_;
  Engine::WorkerSlot* const slot_;  ///< where callers turn the worker; null: they never do
  Engine::Caller caller_;           ///< the caller's
  const std::shared_ptr<CallerRecorders> recorders_;
  const uint32_t worker_index_;
  Server* server_ = nullptr;  ///< read and written by whoever turns the worker
  const bool answered_late_;
  ActorId actor_{};
  Address<Message> address_;
  alignas(64) std::atomic<uint32_t> news_{0};
};

}  // namespace nccl_ha
