#include "actors/connection/failover_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

std::string counted(size_t count, const char* what) {
  return fmt::format("{} more {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

FailoverLog::FailoverLog(Context& context) : context_(context) {
  timer_.bind([](void* self) { static_cast<FailoverLog*>(self)->on_window_over(); }, this);
}

FailoverLog::~FailoverLog() {
  context_.timers().cancel(timer_);
  for (const auto& [key, burst] : bursts_) {
    log_gathered(key, burst);
  }
}

std::shared_ptr<FailoverLog> FailoverLog::of(Context& context) {
  auto known = context.shared().find<FailoverLog>();
  if (!known) {
    known = std::make_shared<FailoverLog>(context);
    context.shared().put(known);
  }
  return known;
}

/// What is logged changes nothing of when timers are armed: a simulation runs alike at each level.
void FailoverLog::warn(const Line& line, const std::function<std::string()>& text) {
  const Instant now = context_.now();
  std::erase_if(bursts_, [&](const auto& known) {
    return known.second.lines == 0 && now >= known.second.ends;
  });
  const auto [found, first] = bursts_.try_emplace(Key{line.kind, line.nic, line.peer});
  Burst& burst = found->second;
  if (first || log_enabled(LogLevel::debug)) {
    NHA_LOG_WARN("{}", text());
  }
  if (first) {
    burst.ends = now + burst.window;
    return;
  }
  if (burst.lines++ == 0) {
    burst.text = text();
  }
  burst.connections.insert(line.connection);
  const Counts& counts = line.counts;
  burst.total.stall = std::max(burst.total.stall, counts.stall);
  burst.total.chunks_again += counts.chunks_again;
  burst.total.bytes_again += counts.bytes_again;
  burst.total.chunks_kept += counts.chunks_kept;
  burst.total.bytes_kept += counts.bytes_kept;
  arm();
}

void FailoverLog::arm() {
  std::optional<Instant> next;
  for (const auto& [key, burst] : bursts_) {
    if (burst.lines != 0) {
      next = next ? std::min(*next, burst.ends) : burst.ends;
    }
  }
  if (next && (!timer_.armed() || timer_.deadline() != *next)) {
    context_.timers().cancel(timer_);
    context_.timers().arm(timer_, *next);
  }
}

void FailoverLog::on_window_over() {
  const Instant now = context_.now();
  for (auto at = bursts_.begin(); at != bursts_.end();) {
    Burst& burst = at->second;
    if (burst.lines == 0 || now < burst.ends) {
      ++at;
      continue;
    }
    log_gathered(at->first, burst);
    if (burst.lines == 1) {
      at = bursts_.erase(at);
      continue;
    }
    Burst next;
    next.window = std::min(2 * burst.window, longest_window);
    next.ends = now + next.window;
    burst = std::move(next);
    ++at;
  }
  arm();
}

void FailoverLog::log_gathered(const Key& key, const Burst& burst) {
  if (burst.lines == 0 || log_enabled(LogLevel::debug)) {
    return;  // nothing, or each by itself
  }
  if (burst.lines == 1) {
    NHA_LOG_WARN("{}", burst.text);
    return;
  }
  NHA_LOG_WARN("{} (within {} ms)", text_of(key, burst), burst.window.count() / 1'000'000);
}

std::string FailoverLog::text_of(const Key& key, const Burst& burst) {
  const std::string& nic = std::get<1>(key);
  const std::string& peer = std::get<2>(key);
  const size_t connections = burst.connections.size();
  const std::string to = fmt::format("to {}{}{}", peer, nic.empty() ? "" : " over ", nic);
  const std::string paths = fmt::format("{} of {} connection{} {}", counted(burst.lines, "path"),
                                        connections, connections == 1 ? "" : "s", to);
  const auto stall_ms = burst.total.stall.count() / 1'000'000;
  const auto moved = [&](const char* where) {
    return fmt::format("traffic of {} to {} moved {}{}", counted(connections, "connection"), peer,
                       where, nic);
  };
  switch (std::get<0>(key)) {
    case Kind::not_up:
      return fmt::format("{} did not come up; others are tried, and they again", paths);
    case Kind::down:
      return fmt::format("{} are down", paths);
    case Kind::stuck:
      return fmt::format("{} are not fenced yet", paths);
    case Kind::failover:
      return fmt::format(
          "failover of {}: at most {} ms after the last heartbeat; {} chunks ({} bytes) go again, "
          "{} ({} bytes) had arrived",
          paths, stall_ms, burst.total.chunks_again, burst.total.bytes_again,
          burst.total.chunks_kept, burst.total.bytes_kept);
    case Kind::moved_to_shadow:
      return moved("to the shadow path over ");
    case Kind::moved:
      return moved("to another path over ");
    case Kind::moved_back:
      return moved("back to their path over ");
    case Kind::back:
      return fmt::format("{} are back after at most {} ms", paths, stall_ms);
    case Kind::stream_lost:
      return fmt::format("the control connection of {} {} is lost",
                         counted(connections, "connection"), to);
  }
  return {};
}

}  // namespace nccl_ha
