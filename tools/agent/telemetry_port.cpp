#include "tools/agent/telemetry_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/secret.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t senders_max = 64;

std::string text_of(const sockaddr* from) {
  const auto address = sender_address(from);
  return address ? address->text() : "somebody";
}

}  // namespace

int64_t time_of_day() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TelemetryPort::TelemetryPort(std::shared_ptr<FlowBoard> board, const AgentSettings& settings,
                             TimeOfDay now)
    : board_(std::move(board)),
      settings_(settings),
      time_of_day_(std::move(now)),
      window_({settings.age_max, senders_max}, time_of_day_()),
      own_id_(kernel_secrets().draw().told()) {}

void TelemetryPort::start(Context& context) {
  context_ = &context;
  if (!settings_.telemetry) {
    return;
  }
  const sockaddr_storage at = settings_.telemetry->to_sockaddr();
  auto endpoint = context.streams().bind_datagram(reinterpret_cast<const sockaddr*>(&at), this);
  if (!endpoint) {
    trouble_ = fmt::format("{}: {}", settings_.telemetry->text(), endpoint.error().message());
    NHA_LOG_ERROR("agent: no telemetry can come: {}", trouble_);
    return;
  }
  endpoint_ = std::move(*endpoint);
  if (auto local = endpoint_->local_address()) {
    port_ =
        ntohs(local->ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(*local).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(*local).sin_port);
  }
  look_for_keys();
}

void TelemetryPort::look_for_keys() {
  if (!endpoint_) {
    return;  // what is wrong has been said
  }
  trouble_.clear();
  if (settings_.keys.empty() && !settings_.unauthenticated) {
    trouble_ =
        "there are no keys, so no telemetry counts: name a file of them (\"telemetry\": {\"keys\": "
        "...}; `nccl-ha agent make-key` makes one)";
    NHA_LOG_WARN("agent: {}", trouble_);
  }
}

void TelemetryPort::set_settings(const AgentSettings& settings) {
  settings_ = settings;
  look_for_keys();
}

bool TelemetryPort::allowed(const sockaddr* from) const {
  const auto address = sender_address(from);
  return address && std::any_of(settings_.allow.begin(), settings_.allow.end(),
                                [&](const IpAddress& one) { return one.same_subnet(*address); });
}

bool TelemetryPort::believed(const TelemetryFrame& frame) const {
  if (frame.tag.empty()) {
    return settings_.unauthenticated;
  }
  return settings_.keys.verify(frame.header.key, frame.covered, frame.tag);
}

bool TelemetryPort::take_number(const TelemetryHeader& header) {
  using Verdict = ha::ReplayWindow::Verdict;
  switch (window_.take(header.sender, header.number, header.stamp, time_of_day_())) {
    case Verdict::fresh:
      return true;
    case Verdict::repeated:
      ++counts_.repeated;
      NHA_LOG_WARN_LIMITED("agent: telemetry that had come before does not count");
      return false;
    case Verdict::too_old:
    case Verdict::from_the_future:
      ++counts_.out_of_time;
      NHA_LOG_WARN_LIMITED(
          "agent: telemetry does not count whose stamp is {:.0f} ms from this host's clock: set "
          "both "
          "clocks, or raise \"age_ms\"",
          (static_cast<double>(header.stamp) - static_cast<double>(time_of_day_())) / 1e6);
      return false;
    case Verdict::too_many_senders:
      ++counts_.too_many;
      NHA_LOG_WARN_LIMITED("agent: telemetry comes from more than {} senders", senders_max);
      return false;
  }
  return false;
}

void TelemetryPort::on_datagram(std::span<const std::byte> bytes, const sockaddr* from) {
  if (!allowed(from)) {
    ++counts_.not_allowed;
    NHA_LOG_WARN_LIMITED("agent: telemetry of {} is not allowed (\"allow\" in the settings)",
                         text_of(from));
    return;
  }
  const auto frame = parse_telemetry(bytes);
  if (!frame) {
    ++counts_.malformed;
    NHA_LOG_WARN_LIMITED("agent: {} bytes of {} are no telemetry of version {}", bytes.size(),
                         text_of(from), telemetry_version);
    return;
  }
  if (!believed(*frame)) {
    ++counts_.forged;
    NHA_LOG_WARN_LIMITED("agent: telemetry of {} is not authenticated by a key that is known here",
                         text_of(from));
    return;
  }
  const auto entries = decode_congestion(*frame);
  if (!entries) {
    ++counts_.malformed;
    NHA_LOG_WARN_LIMITED("agent: {} says something that switches do not say", text_of(from));
    return;
  }
  if (!take_number(frame->header)) {
    return;
  }
  ++counts_.taken;
  last_taken_ = context_->now();
  board_->on_congestion(*entries, last_taken_);
}

TelemetryHeader TelemetryPort::next_header(TelemetryType type) {
  TelemetryHeader header;
  header.type = type;
  header.sender = own_id_;
  header.number = ++last_number_;
  header.stamp = time_of_day_();
  header.key = settings_.keys.newest();
  return header;
}

void TelemetryPort::send(std::vector<std::byte> datagram) {
  if (!settings_.keys.empty()) {
    settings_.keys.sign(settings_.keys.newest(), datagram);
  }
  const sockaddr_storage to = settings_.report_to->to_sockaddr();
  const auto sent = endpoint_->send(datagram, reinterpret_cast<const sockaddr*>(&to));
  if (!sent) {
    ++counts_.send_failures;
    NHA_LOG_WARN_LIMITED("agent: cannot tell the switch {}: {}", settings_.report_to->text(),
                         sent.error().message());
    return;
  }
  ++counts_.sent;
}

void TelemetryPort::send_notices(TelemetryType type, std::span<const FlowNotice> notices) {
  const size_t most = telemetry_entries_max(type);
  while (endpoint_ && settings_.report_to && !notices.empty()) {
    const size_t count = std::min(most, notices.size());
    send(encode(next_header(type), notices.first(count), !settings_.keys.empty()));
    notices = notices.subspan(count);
  }
}

void TelemetryPort::send_reports(std::span<const NicReport> reports) {
  if (endpoint_ && settings_.report_to && !reports.empty()) {
    send(encode(next_header(TelemetryType::nic_report), reports, !settings_.keys.empty()));
  }
}

}  // namespace nccl_ha::tools
