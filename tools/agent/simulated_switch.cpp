#include "tools/agent/simulated_switch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/base/secret.h"
#include "tools/agent/telemetry_port.h"

namespace nccl_ha::tools {

SimulatedSwitch::SimulatedSwitch(Options options)
    : options_(std::move(options)), id_(kernel_secrets().draw().told()) {
  timer_.bind([](void* self) { static_cast<SimulatedSwitch*>(self)->speak(); }, this);
}

void SimulatedSwitch::start(Context& context) {
  context_ = &context;
  const sockaddr_storage at = options_.listen.to_sockaddr();
  auto endpoint = context.streams().bind_datagram(reinterpret_cast<const sockaddr*>(&at), this);
  if (!endpoint) {
    end(endpoint.error());
    return;
  }
  endpoint_ = std::move(*endpoint);
  begun_ = context.now();
  if (!options_.quiet) {
    fmt::print("{:8.3f} s  is {} ns on the monotonic clock\n", 0.0,
               begun_.time_since_epoch().count());
  }
  speak();
}

void SimulatedSwitch::stop() {
  endpoint_.reset();
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
}

void SimulatedSwitch::end(Result<void> how) {
  if (options_.finish) {
    std::exchange(options_.finish, nullptr)(std::move(how));
  }
}

void SimulatedSwitch::take_steps(Instant now) {
  while (next_step_ < options_.script.size() && now - begun_ >= options_.script[next_step_].at) {
    const SwitchStep& step = options_.script[next_step_++];
    levels_[{step.flow, step.rail}] = step.level;
    if (!options_.quiet) {
      fmt::print("{:8.3f} s  rail {} level {}  {} > {}\n",
                 std::chrono::duration<double>(now - begun_).count(), step.rail, step.level,
                 text_of(step.flow.source), text_of(step.flow.destination));
      static_cast<void>(std::fflush(stdout));
    }
  }
}

void SimulatedSwitch::speak() {
  const Instant now = context_->now();
  take_steps(now);
  std::vector<CongestionEntry> entries;
  for (const auto& [what, level] : levels_) {
    CongestionEntry entry;
    entry.flow = what.first;
    entry.rail = what.second;
    const double shift = options_.noise * (2 * context_->random().unit() - 1);
    entry.level = static_cast<uint8_t>(std::clamp(level + shift, 0.0, 255.0));
    entries.push_back(entry);
  }
  const size_t most = telemetry_entries_max(TelemetryType::congestion);
  for (size_t at = 0; at < entries.size(); at += most) {
    send(std::span(entries).subspan(at, std::min(most, entries.size() - at)));
  }
  if (now - begun_ >= options_.script.back().at + options_.linger) {
    end({});
    return;
  }
  context_->timers().arm(timer_, now + options_.every);
}

void SimulatedSwitch::send(std::span<const CongestionEntry> entries) {
  TelemetryHeader header;
  header.type = TelemetryType::congestion;
  header.sender = id_;
  header.number = ++last_number_;
  header.stamp = time_of_day();
  header.key = options_.keys.newest();
  auto datagram = encode(header, entries, !options_.keys.empty());
  if (!options_.keys.empty()) {
    options_.keys.sign(header.key, datagram);
  }
  for (const SocketPoint& agent : options_.agents) {
    if (context_->random().chance(options_.loss)) {
      continue;
    }
    const sockaddr_storage to = agent.to_sockaddr();
    // A full socket loses it, as a network would.
    if (auto sent = endpoint_->send(datagram, reinterpret_cast<const sockaddr*>(&to));
        !sent && sent.code() != Errc::again) {
      end(sent.error());
    }
  }
}

void SimulatedSwitch::on_datagram(std::span<const std::byte> bytes, const sockaddr* from) {
  (void)from;
  const auto frame = parse_telemetry(bytes);
  const bool believed =
      frame && (options_.keys.empty() ||
                options_.keys.verify(frame->header.key, frame->covered, frame->tag));
  if (believed && !options_.quiet) {
    show_notices(*frame);
    static_cast<void>(std::fflush(stdout));
  }
}

void SimulatedSwitch::show_notices(const TelemetryFrame& frame) {
  const double at = std::chrono::duration<double>(context_->now() - begun_).count();
  if (const auto notices = decode_flow_notices(frame)) {
    for (const FlowNotice& notice : *notices) {
      fmt::print("{:8.3f} s  flow {}  {} > {}\n", at,
                 frame.header.type == TelemetryType::flow_begun ? "begun" : "ended",
                 text_of(notice.flow.source), text_of(notice.flow.destination));
    }
  } else if (const auto reports = decode_nic_reports(frame)) {
    for (const NicReport& report : *reports) {
      fmt::print("{:8.3f} s  nic {} rail {} level {}  out {} B  in {} B  in {} ms\n", at,
                 text_of(report.address), report.rail, report.level, report.bytes_out,
                 report.bytes_in, report.interval_us / 1000);
    }
  }
}

}  // namespace nccl_ha::tools
