// From the first paths to a connection that is ready, also when some of them fail.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/connection.h"
#include "ha/error_class.h"
#include "runtime/log.h"

namespace nccl_ha {

void Connection::on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) {
  if (failed_ || finished_) {
    return;
  }
  if (state == fabric::PathState::ready) {
    NHA_LOG_DEBUG("path ready: {}", path.describe());
    if (ready_) {
      on_lane_ready(lane_of(&path));
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
  // Where nothing can take its place, a failed handshake is told to the caller, who can still
  // choose otherwise.
  if (!backup_ || program || (shadows_ == 0 && paths_failed_ + 1 == lanes_.size())) {
    fail_connection(error);
    return;
  }
  ++paths_failed_;
  const size_t lane = lane_of(&path);
  lanes_[lane].settled = true;
  early_failures_.push_back({lane, error});
  // The peer's side of it may wait for the whole handshake's time.
  send_control(
      encode(ControlType::doubt, PathNotice{static_cast<uint8_t>(lane), 0, error.message()}));
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
    lane.usable = true;
    lane.health.begin(context_->now());
  }
  on_paths_ready();
  for (const EarlyFailure& early : std::exchange(early_failures_, {})) {
    if (!failed_ && !finished_) {
      on_lane_failed(early.lane, early.why);
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
  if (!notice || notice->path >= lanes_.size() || notice->epoch != 0 ||
      early_messages_.size() >= 2 * lanes_max) {
    fail_connection(fail(Errc::remote, "malformed message about a path on the control stream"));
    return true;
  }
  early_messages_.push_back(encode(message.type, *notice));
  const Error why = fail(Errc::remote, fmt::format("the peer reports: {}", notice->why));
  fabric::Path& path = lanes_[notice->path].path();
  if (path.state() == fabric::PathState::connecting) {
    path.fail(why);
  }
  return true;
}

}  // namespace nccl_ha
