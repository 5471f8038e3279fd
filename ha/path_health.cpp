#include "ha/path_health.h"

namespace nccl_ha::ha {
namespace {

/// Signs of life that may stay unanswered, as the nccl-ha seed has it (section 4.2).
constexpr int64_t pulses_missed_max = 3;

/// What is allowed for data while nobody has seen how fast a path is: 5 MB/s.
constexpr int64_t unproven_ns_per_byte = 200;

/// Work may take this many times as long as it lately did.
constexpr int64_t usual_times = 4;

/// What is usual is forgotten by this share with each look.
constexpr int64_t forgotten_share = 32;

}  // namespace

bool PathHealth::look(Instant now, const Open& open, const Limits& limits) {
  if (life_ != life_seen_ || open.writes == 0 || !waited_) {
    on_answer(now, open, limits);
    return false;
  }
  return now - alive_at_ >= limit(open, limits);
}

/// Something came, or nothing was waited for.
void PathHealth::on_answer(Instant now, const Open& open, const Limits& limits) {
  const Duration silent = now - alive_at_;
  const bool answered = waited_ && life_ != life_seen_;
  silence_ =
      std::max(answered && worked_ ? silent : Duration(0), silence_ - silence_ / forgotten_share);
  if (answered && silent < limits.soft_timeout / 2) {
    bytes_proven_ = std::max(bytes_proven_, bytes_seen_);
  }
  suspect_ = suspect_ && !answered;
  // Its own signs of life are no traffic: there is at most one of them between two looks.
  moved_ = life_ - life_seen_ > 1;
  life_seen_ = life_;
  alive_at_ = now;
  waited_ = open.writes != 0;
  worked_ = open.writes > open.pulses;
  bytes_seen_ = open.bytes;
}

Duration PathHealth::limit(const Open& open, const Limits& limits) const {
  // Looked at with the third one after it, whichever of the two comes a moment early.
  const Duration missed = pulses_missed_max * limits.heartbeat - limits.heartbeat / 8;
  if (open.writes <= open.pulses && !suspect_) {
    return missed;
  }
  // A large write completes as a whole, on a slow network long after it was posted.
  const Duration large(
      open.bytes > bytes_proven_ ? static_cast<int64_t>(open.bytes) * unproven_ns_per_byte : 0);
  return std::min(missed, std::clamp(usual_times * silence_, limits.soft_timeout / 2,
                                     limits.soft_timeout)) +
         large;
}

}  // namespace nccl_ha::ha
