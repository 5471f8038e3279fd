// From the first paths to a connection that is ready, also when some of them fail.
#include <algorithm>
#include <utility>

#include "actors/connection.h"
#include "ha/error_class.h"
#include "ha/mutation.h"
#include "runtime/log.h"

namespace nccl_ha {

void Connection::on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) {
  if (linger_.under_way() && state == fabric::PathState::error) {
    lanes_[lane_of(&path)].usable = false;
    look_whether_over();
  }
  if (failed_ || finished_) {
    return;
  }
  if (state == fabric::PathState::ready) {
    NHA_LOG_DEBUG("path ready: {}", path.describe());
    if (ready_) {
      on_lane_ready(lane_of(&path));
      tell_usable();
    } else {
      lanes_[lane_of(&path)].settled = true;
      end_handshake();
    }
    return;
  }
  const bool program = ha::classify(path.cause()) == ha::ErrorClass::program;
  if (ready_ && backup_ && !program) {
    on_lane_failed(lane_of(&path), error);
    return;
  }
  if (!backup_ || program) {
    fail_connection(error);
    return;
  }
  // Whatever failed, also the only path: the peer's host may just not have got to it yet, and
  // until the caller's time is up another one may come up.
  const size_t lane = lane_of(&path);
  lanes_[lane].settled = true;
  lanes_[lane].early_failure = error;
  need_ = without_reporter(error.message());
  // The peer's side of it may wait for the whole handshake's time.
  send_control(encode(ControlType::doubt,
                      PathNotice{static_cast<uint8_t>(lane), 0, false, error.message()}));
  context_->request_stream_turns(1000);
  end_handshake();
}

/// When the first paths have come up or failed, the connection begins; what failed is then
/// replaced.
void Connection::end_handshake() {
  if (!std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.settled; })) {
    return;
  }
  for (Lane& lane : lanes_) {
    lane.usable = !lane.early_failure;
    lane.health.begin(context_->moment());
  }
  ready_ = true;
  on_paths_ready();
  for (size_t lane = 0; lane < lanes_.size() && !failed_ && !finished_; ++lane) {
    if (const auto why = std::exchange(lanes_[lane].early_failure, std::nullopt)) {
      on_lane_failed(lane, *why);
    }
  }
  for (const auto& frame : std::exchange(early_messages_, {})) {
    ControlReader reader;
    static_cast<void>(reader.feed(frame));
    const auto message = reader.next();
    if (message && !failed_ && !finished_) {
      on_control(*message);
    }
  }
  tell_usable();
}

/// The caller may use the connection from the moment on that there is a path.
void Connection::tell_usable() {
  if (!told_ && ready_ && any_usable() && !failed_ && !finished_) {
    told_ = true;
    disarm_deadline();
    on_usable();
  }
}

/// What the peer says of paths while this side is not ready yet: it may be ready itself, and takes
/// the confirmation of an earlier message for the word that this side is.
bool Connection::take_early(const ControlReader::Message& message) {
  if (ready_ || !backup_) {
    return false;
  }
  if (message.type == ControlType::rebuild) {
    const auto offer = decode_offer(message.payload);
    if (!offer || early_messages_.size() >= 2 * lanes_max) {
      fail_connection(fail(Errc::remote, "malformed message about a path on the control stream"));
    } else {
      early_messages_.push_back(encode(message.type, *offer));
    }
    return true;
  }
  if (message.type != ControlType::down && message.type != ControlType::doubt) {
    return false;
  }
  const auto notice = decode_notice(message.payload);
  // Of a first path; or of a fallback path that was offered meanwhile and has failed since.
  const bool first = notice && notice->path < lanes_.size();
  const bool known = first ? notice->epoch == 0 : notice && notice->path < lanes_.size() + shadows_;
  if (!known || early_messages_.size() >= 2 * lanes_max) {
    fail_connection(fail(Errc::remote, "malformed message about a path on the control stream"));
    return true;
  }
  if (!ha::mutated(ha::Mutation::early_words_dropped)) {
    early_messages_.push_back(encode(message.type, *notice));
  }
  if (first && lanes_[notice->path].path().state() == fabric::PathState::connecting) {
    lanes_[notice->path].path().fail(from_peer(notice->why));
  }
  return true;
}

}  // namespace nccl_ha
