// From the first paths to a connection that is ready, also when some of them fail.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/connection.h"
#include "ha/error_class.h"
#include "ha/mutation.h"
#include "runtime/log.h"

namespace nccl_ha {

Result<void> Connection::make_paths(const sockaddr_storage& local, size_t count, bool active) {
  local_ = local;
  primaries_ = count;
  lanes_.resize(count);
  // What the check of a path found out is known in time for the message of whoever gives up.
  const Config& config = context_->config();
  const Duration first_limit = config.enable_backup
                                   ? std::chrono::milliseconds(config.connect_timeout_ms * 9 / 10)
                                   : Duration(0);
  for (Lane& lane : lanes_) {
    lane.at = attachment_;
    lane.local = local;
    auto made = make_path(lane, active, first_limit);
    if (made) {
      continue;
    }
    if (!config.enable_backup || !ha::is_absence(made.error().sys)) {
      return made;
    }
    fail_early(lane, made.error());
  }
  return {};
}

Result<void> Connection::connect_paths(const std::vector<PathEnd>& peers, uint32_t table_key) {
  for (size_t i = 0; i < primaries_; ++i) {
    Lane& lane = lanes_[i];
    if (!backup_ && lane.early_failure) {
      return *lane.early_failure;  // the peer replaces no path
    }
    if (!backup_ && !peers[i].missing.empty()) {
      return from_peer(peers[i].missing);
    }
    lane.tables.table_key = table_key;
    if (!lane.owned.path) {
      continue;
    }
    if (!peers[i].missing.empty()) {
      lane.path().fail(from_peer(peers[i].missing));
    } else if (auto connected = connect_path(lane, peers[i], table_key); !connected) {
      return connected;
    }
  }
  return {};
}

std::vector<PathEnd> Connection::path_ends() {
  std::vector<PathEnd> ends;
  for (Lane& lane : lanes_) {
    ends.push_back(path_end(lane));
  }
  return ends;
}

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
      lanes_[lane_of(&path)].decided = true;
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
  fail_early(lanes_[lane], error);
  // The peer's side of it may wait for the whole handshake's time.
  send_control(encode(ControlType::suspect,
                      PathNotice{static_cast<uint8_t>(lane), 0, false, error.message()}));
  context_->request_stream_turns(1000);
  end_handshake();
}

void Connection::fail_early(Lane& lane, const Error& why) {
  lane.decided = lane.owned.path || !ha::mutated(ha::Mutation::missing_path_awaited);
  lane.early_failure = why;
  need_ = without_reporter(why.message());
}

/// When the first paths have come up or failed, the connection begins; what failed is then
/// replaced.
void Connection::end_handshake() {
  if (!std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.decided; })) {
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
      count_down(lane);
      NHA_LOG_WARN(
          "path {} of the connection to {} did not come up; others are tried, and it again: {}",
          lane, peer_text(), why->message());
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

std::string Connection::paths_text() {
  const auto up = static_cast<size_t>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.usable; }));
  const auto first =
      std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.usable; });
  return first->path().describe() + (up > 1 ? fmt::format(" and {} more", up - 1) : "");
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
  if (message.type != ControlType::down && message.type != ControlType::suspect) {
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
  if (fabric::Path* path = first ? lanes_[notice->path].owned.path.get() : nullptr;
      path != nullptr && path->state() == fabric::PathState::connecting) {
    path->fail(from_peer(notice->why));
  }
  return true;
}

}  // namespace nccl_ha
