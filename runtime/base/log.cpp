#include "runtime/base/log.h"

#include <cstdio>
#include <mutex>
#include <type_traits>

#include "runtime/base/clock.h"

namespace nccl_ha {
namespace {

struct Sink {
  LogSink call = nullptr;
  void* context = nullptr;
};

// Threads may log while static destructors run: nothing here needs one.
constinit std::mutex sink_mutex;
static_assert(std::is_trivially_destructible_v<std::mutex>);

Sink current_sink;
std::atomic<LogLevel> current_level{LogLevel::info};

const char* level_text(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warn:
      return "warn";
    case LogLevel::info:
      return "info";
    case LogLevel::debug:
      return "debug";
  }
  return "?";
}

}  // namespace

void set_log_sink(LogSink sink, void* context) {
  std::lock_guard lock(sink_mutex);
  current_sink = {sink, context};
}

void set_log_level(LogLevel level) { current_level.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level <= current_level.load(std::memory_order_relaxed); }

void log_text(LogLevel level, const char* file, int line, const char* text) {
  Sink sink;
  {
    std::lock_guard lock(sink_mutex);
    sink = current_sink;
  }
  if (sink.call != nullptr) {
    sink.call(sink.context, level, file, line, text);
  } else if (level <= LogLevel::warn) {
    // Without a sink there is no job to talk to: only what somebody has to know.
    std::fprintf(stderr, "nccl-ha: %s: %s\n", level_text(level), text);
  }
}

bool LogLimiter::pass(uint64_t* suppressed) {
  SteadyClock clock;
  const int64_t now = clock.now().time_since_epoch().count();
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  if (now < next ||
      !next_ns_.compare_exchange_strong(next, now + 1'000'000'000, std::memory_order_relaxed)) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  *suppressed = suppressed_.exchange(0, std::memory_order_relaxed);
  return true;
}

}  // namespace nccl_ha
