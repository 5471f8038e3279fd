// The accepted side when the sender has closed.
#include "actors/listener.h"
#include "actors/receive_connection.h"

namespace nccl_ha {

/// Everything that it completed has been acknowledged by this side, so whatever else is posted
/// stays empty for ever.  Completions that tell of it may be behind these words.
void ReceiveConnection::on_peer_closed(std::span<const std::byte> payload) {
  const auto notice = decode_close(payload);
  if (ready_ && notice && notice->groups_completed <= groups_posted_) {
    tail_.begin(notice->groups_completed, context_->now());
  }
  look_at_tail();
}

void ReceiveConnection::look_at_tail() {
  if (failed_ || finished_) {
    return;
  }
  const Instant now = context_->now();
  if (tail_.under_way() && !tail_.is_over(groups_completed_, now)) {
    context_->timers().arm(tail_timer_, now + ha::CloseTail::interval);
    return;
  }
  tail_.end();
  const Error why = fail(Errc::remote, "the peer closed the connection");
  linger_.on_last_words();
  part({}, why, false);
  channel_->set_failed(why);
  if (!told_) {
    listener_->fail(fail(Errc::remote, "the peer gave up while connecting"));
    finish();
  }
}

}  // namespace nccl_ha
