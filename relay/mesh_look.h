// Whether a process that nobody told so takes part in a mesh: it looks who is on its interfaces,
// and rests where that is a switch.
//
// A cable without a switch has one other host at its end.  Where an interface hears two, all hosts
// on it reach each other as they are, and nothing is said any more, until a peer is out of reach of
// this host or of another one, which then seeks.  Whoever comes later and would hear nobody is told
// by one of those that rest.  Whoever has taken part goes on also when nobody is heard any more:
// two who both rest would never find out that the cable between them works again.
//
// How long a peer is still looked for goes from host to host with each hello and grows less on the
// way, so that it ends everywhere when nobody seeks any more.  Pure; one thread.
#pragma once

#include <algorithm>
#include <cstddef>

#include "relay/packet.h"
#include "runtime/base/clock.h"

namespace nccl_ha::relay {

class MeshLook {
 public:
  /// Whoever hears nobody for so long rests until somebody is heard.
  static constexpr Duration look_max = std::chrono::seconds(2);
  /// A switch shows itself by then: hosts of one job begin together.
  static constexpr Duration settle = std::chrono::milliseconds(100);
  /// For so long a host seeks on after the last time that somebody said so.
  static constexpr Duration seek_for = std::chrono::seconds(10);

  /// What is heard on the interface on which somebody has just said hello.
  struct Heard {
    size_t hosts = 0;  ///< there
    bool far = false;  ///< hosts are known on which no interface of this one is
  };

  /// `looks`: false: it takes part whatever it hears.
  void begin(bool looks, Instant now) {
    looks_ = looks;
    look(now);
  }
  void on_hello(const HelloPacket& hello, const Heard& heard, Instant now) {
    if (hello.seeks_ms != 0) {
      const Duration left = std::chrono::milliseconds(hello.seeks_ms);
      seeks_until_ = std::max(seeks_until_, now + std::min(left, seek_for));
    }
    if (!looks_) {
      return;
    }
    const bool in_use = state_ == State::takes_part && heard.far;
    if ((heard.hosts > 1 || hello.crowded) && !in_use) {
      crowded_ = true;
    }
    if (seeks(now)) {
      state_ = State::takes_part;
    } else if (crowded_) {
      state_ = in_use ? state_ : State::rests;
    } else if (state_ == State::rests) {
      look(now);
    } else if (state_ == State::looks) {
      until_ = std::min(until_, now + settle);
      answered_ = true;
    }
  }
  /// A peer of this host is out of reach, until that is taken back.
  void need(bool needs) {
    needs_ = needs;
    state_ = needs ? State::takes_part : state_;
  }
  /// Of a process of this host, which says so again as long as that is so.
  void need_now(Instant now) {
    seeks_until_ = now + seek_for;
    state_ = State::takes_part;
  }
  void tick(Instant now) {
    if (state_ == State::looks && until_ <= now) {
      state_ = answered_ ? State::takes_part : State::rests;
    } else if (state_ == State::takes_part && looks_ && crowded_ && !seeks(now)) {
      state_ = State::rests;
    }
  }
  /// Cables may have been plugged in, or it knows by more keys who is of its job.
  void look_again(Instant now) {
    if (rests()) {
      crowded_ = false;
      look(now);
    }
  }
  Instant next_deadline() const {
    return state_ == State::looks                               ? until_
           : state_ == State::takes_part && crowded_ && !needs_ ? seeks_until_
                                                                : Instant::max();
  }

  /// Says nothing.
  bool rests() const { return state_ == State::rests; }
  /// Relays for others.
  bool takes_part() const { return state_ == State::takes_part; }
  bool seeks(Instant now) const { return needs_ || now < seeks_until_; }
  /// What is left of that; 0: it does not seek.
  uint16_t seeks_ms(Instant now) const {
    const Duration left = needs_ ? seek_for : std::max(seeks_until_ - now, Duration(0));
    return static_cast<uint16_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  }
  /// An interface has a switch behind it.
  bool crowded() const { return crowded_; }

 private:
  enum class State { looks, takes_part, rests };
  void look(Instant now) {
    state_ = looks_ ? State::looks : State::takes_part;
    answered_ = false;
    until_ = now + look_max;
  }
  State state_ = State::takes_part;
  bool looks_ = false;
  bool needs_ = false;
  bool answered_ = false;  ///< somebody is heard, since it looks
  bool crowded_ = false;
  Instant until_{};
  Instant seeks_until_{};
};

}  // namespace nccl_ha::relay
