#include "runtime/telemetry/trace_keeper.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/telemetry/trace_dump.h"

namespace nccl_ha {
namespace {

constexpr int trace_signal = SIGUSR2;

uint32_t bit_of(TraceCause cause) { return 1U << static_cast<unsigned>(cause); }

/// What a signal handler may touch: descriptors of the keepers that want to hear of it.
struct Listeners {
  static constexpr size_t most = 16;
  std::array<std::atomic<int>, most> fds{};  ///< the descriptor + 1; 0: free
};
Listeners listeners;
std::mutex signal_mutex;  ///< of who installs the handler
size_t signal_users = 0;  ///< under that
std::atomic<int> signal_pid{0};
constexpr uint64_t signal_tick = uint64_t{1} << 32;  ///< what the handler adds to an eventfd

/// Async-signal-safe.
void on_trace_signal(int) {
  if (getpid() != signal_pid.load(std::memory_order_relaxed)) {
    return;  // a fork shares the descriptors
  }
  const int saved = errno;
  for (const auto& place : listeners.fds) {
    const int fd = place.load(std::memory_order_relaxed) - 1;
    if (fd >= 0) {
      static_cast<void>(!::write(fd, &signal_tick, sizeof signal_tick));
    }
  }
  errno = saved;
}

std::string text_of(uint64_t causes) {
  std::string text;
  const auto add = [&](TraceCause cause, const char* name) {
    if ((causes & bit_of(cause)) != 0) {
      text += (text.empty() ? "" : ", ") + std::string(name);
    }
  };
  add(TraceCause::failure, "a connection failed");
  add(TraceCause::failover, "a path was replaced");
  add(TraceCause::signal, "SIGUSR2");
  return text;
}

}  // namespace

TraceKeeper::Options TraceKeeper::options_of(const Config& config) {
  Options options;
  options.directory = config.trace_dir.empty() ? config.counters_dir : config.trace_dir;
  options.interval = std::chrono::milliseconds(config.trace_interval_ms);
  options.bytes_max = static_cast<uint64_t>(config.trace_mb) << 20;
  options.on_signal = config.trace_signal;
  return options;
}

std::unique_ptr<TraceKeeper> TraceKeeper::start(std::shared_ptr<CounterFile> file,
                                                const Options& options) {
  if (!file || options.directory.empty() || options.bytes_max == 0) {
    return nullptr;
  }
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) {
    NHA_LOG_WARN("no flight recorder will be dumped: {}",
                 fail(Errc::system, "there is no descriptor for it", errno).message());
    return nullptr;
  }
  std::unique_ptr<TraceKeeper> keeper(new TraceKeeper(std::move(file), options, fd));
  try {
    keeper->thread_ = std::thread([raw = keeper.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    NHA_LOG_WARN("no flight recorder will be dumped: there is no thread for it: {}", error.what());
    return nullptr;
  }
  if (options.on_signal) {
    keeper->take_signal();
  }
  return keeper;
}

TraceKeeper::TraceKeeper(std::shared_ptr<CounterFile> file, const Options& options, int fd)
    : file_(std::move(file)), options_(options), fd_(fd), owner_pid_(getpid()) {}

TraceKeeper::~TraceKeeper() {
  leave_signal();
  if (thread_.joinable() && getpid() == owner_pid_) {
    stopping_.store(true, std::memory_order_release);
    const uint64_t one = 1;
    static_cast<void>(!::write(fd_, &one, sizeof one));
    thread_.join();
  } else if (thread_.joinable()) {
    thread_.detach();  // a fork has no such thread
  }
  close(fd_);
}

/// The signal is the process's: a handler that it has stays, and so does one that it gets later.
void TraceKeeper::take_signal() {
  std::lock_guard lock(signal_mutex);
  struct sigaction now {};
  if (sigaction(trace_signal, nullptr, &now) != 0) {
    return;
  }
  const bool ours = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == on_trace_signal;
  const bool free = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
  if (!ours && !free) {
    NHA_LOG_INFO(
        "SIGUSR2 dumps no flight recorder, as this process has a handler of its own for it: "
        "`nccl-ha trace dump {}` does",
        getpid());
    return;
  }
  for (size_t i = 0; i < Listeners::most; ++i) {
    int nobody = 0;
    if (listeners.fds[i].compare_exchange_strong(nobody, fd_ + 1)) {
      signal_place_ = i;
      break;
    }
  }
  if (signal_place_ == SIZE_MAX) {
    return;
  }
  ++signal_users;
  signal_pid.store(owner_pid_, std::memory_order_relaxed);
  if (free) {
    struct sigaction mine {};
    mine.sa_handler = on_trace_signal;
    mine.sa_flags = SA_RESTART;
    sigemptyset(&mine.sa_mask);
    sigaction(trace_signal, &mine, nullptr);
  }
}

void TraceKeeper::leave_signal() {
  if (signal_place_ == SIZE_MAX) {
    return;
  }
  std::lock_guard lock(signal_mutex);
  if (--signal_users == 0) {
    struct sigaction now {};
    if (sigaction(trace_signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
        now.sa_handler == on_trace_signal) {
      // What comes late must not end a process that did nothing wrong.
      struct sigaction nothing {};
      nothing.sa_handler = SIG_IGN;
      sigaction(trace_signal, &nothing, nullptr);
      nothing.sa_handler = SIG_DFL;
      sigaction(trace_signal, &nothing, nullptr);
    }
  }
  listeners.fds[signal_place_].store(0);
}

void TraceKeeper::ask(TraceCause cause) {
  if ((causes_.fetch_or(bit_of(cause), std::memory_order_acq_rel) & bit_of(cause)) == 0) {
    const uint64_t one = 1;
    static_cast<void>(!::write(fd_, &one, sizeof one));
  }
}

void TraceKeeper::run() {
  // The job's signals belong to the job's threads.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  pthread_setname_np(pthread_self(), "nha-trace");
  bool stopping = false;
  while (!stopping) {
    uint64_t ticks = 0;
    if (read(fd_, &ticks, sizeof ticks) < 0 && errno != EINTR) {
      return;
    }
    stopping = stopping_.load(std::memory_order_acquire);
    uint64_t causes = causes_.exchange(0, std::memory_order_acq_rel);
    causes |= ticks >= signal_tick ? bit_of(TraceCause::signal) : 0;
    if (causes != 0) {
      write(causes);
    }
  }
}

void TraceKeeper::write(uint64_t causes) {
  const auto now = std::chrono::steady_clock::now();
  const bool asked = (causes & bit_of(TraceCause::signal)) != 0;
  // The last dump before the end is not left out because of an earlier one that is not about it.
  auto& last = (causes & bit_of(TraceCause::failure)) != 0 ? last_failure_ : last_failover_;
  if (!asked && last && now - *last < options_.interval) {
    ++left_out_;
    return;
  }
  last = now;
  const std::string why =
      text_of(causes) +
      (left_out_ == 0 ? "" : fmt::format("; {} times before without a dump", left_out_));
  left_out_ = 0;
  auto bytes = copy_counters(file_->bytes(), why);
  if (!bytes) {
    NHA_LOG_WARN("the flight recorders cannot be dumped: {}", bytes.error().message());
    return;
  }
  if (bytes->size() > options_.bytes_max) {
    NHA_LOG_WARN("a dump of {} bytes is not written: HA_NCCL_TRACE_MB allows {}", bytes->size(),
                 options_.bytes_max);
    return;
  }
  make_room_for_traces(options_.directory, options_.bytes_max, bytes->size());
  counter_layout::FileHeader header{};
  std::memcpy(&header, bytes->data(), sizeof header);
  static std::atomic<uint32_t> number{0};  // an engine may dump in the same millisecond as another
  const std::string path =
      fmt::format("{}/nccl-ha-{}-{}-{}{}", options_.directory, owner_pid_,
                  header.dumped_realtime_ns / 1'000'000,
                  number.fetch_add(1, std::memory_order_relaxed), trace_ending);
  if (auto made = write_trace(path, *bytes); !made) {
    NHA_LOG_WARN("the flight recorders cannot be dumped: {} (HA_NCCL_TRACE_DIR)",
                 made.error().message());
    return;
  }
  written_.fetch_add(1, std::memory_order_acq_rel);
  NHA_LOG_INFO("the flight recorders are in {} ({}): nccl-ha trace summary {}", path, why, path);
}

}  // namespace nccl_ha
