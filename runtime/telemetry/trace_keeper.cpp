#include "runtime/telemetry/trace_keeper.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/own_thread.h"

namespace nccl_ha {
namespace {

std::string text_of(uint32_t causes) {
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

/// For poll(2): not before `until`, and not longer than it can wait.
int milliseconds_until(const std::optional<Instant>& until, Instant now) {
  if (!until) {
    return -1;
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*until - now).count();
  return static_cast<int>(std::clamp<int64_t>(wait, 0, INT_MAX));
}

}  // namespace

/// What the thread works with; it may outlive the keeper.
class TraceKeeper::Writer {
 public:
  Writer(std::shared_ptr<CounterFile> file, const Options& options, int fd)
      : file_(std::move(file)),
        options_(options),
        fd_(fd),
        pid_(getpid()),
        schedule_({options.interval, options.settle}) {}
  ~Writer() { close_fd(fd_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  const Options& options() const { return options_; }
  int fd() const { return fd_; }
  uint64_t written() const { return written_.load(std::memory_order_acquire); }

  void ask(TraceCause cause) {
    if ((causes_.fetch_or(bit_of(cause), std::memory_order_acq_rel) & bit_of(cause)) == 0) {
      wake();
    }
  }
  /// Also what waits for its time is written; nothing after that.
  void stop() {
    stopping_.store(true, std::memory_order_release);
    wake();
  }
  /// False: it is still writing.
  bool wait_until_done() {
    std::unique_lock lock(mutex_);
    return done_changed_.wait_for(lock, options_.stop_limit, [this] { return done_; });
  }
  /// Whoever has the log may be gone from now on.
  void leave_alone() { alone_.store(true, std::memory_order_release); }

  void run();

 private:
  void wake() const {
    const uint64_t one = 1;
    static_cast<void>(!::write(fd_, &one, sizeof one));
  }
  /// Causes that came within so many milliseconds, -1: without a limit; nothing: it can no longer
  /// be asked.
  std::optional<uint32_t> wait_for_causes(int limit);
  void try_to_write(uint32_t causes);
  void write(uint32_t causes);
  bool may_log() const { return !alone_.load(std::memory_order_acquire); }

  const std::shared_ptr<CounterFile> file_;
  const Options options_;
  const int fd_;  ///< of eventfd(2): the thread sleeps on it
  const int pid_;
  TraceSchedule schedule_;
  std::atomic<uint32_t> causes_{0};  ///< bits of TraceCause
  std::atomic<bool> stopping_{false};
  std::atomic<bool> alone_{false};
  std::atomic<uint64_t> written_{0};
  std::mutex mutex_;
  std::condition_variable done_changed_;
  bool done_ = false;  ///< under mutex_
};

std::optional<uint32_t> TraceKeeper::Writer::wait_for_causes(int limit) {
  pollfd waiting{fd_, POLLIN, 0};
  poll(&waiting, 1, limit);
  if ((waiting.revents & (POLLNVAL | POLLERR)) != 0) {
    return std::nullopt;  // somebody closed it
  }
  uint64_t ticks = 0;
  const bool signaled = read(fd_, &ticks, sizeof ticks) > 0 && ticks >= TraceSignal::tick;
  return causes_.exchange(0, std::memory_order_acq_rel) |
         (signaled ? bit_of(TraceCause::signal) : 0U);
}

void TraceKeeper::Writer::run() {
  prepare_thread("nha-trace");
  give_precedence();  // a failover is dumped while its rounds still go on
  bool stopping = false;
  while (!stopping) {
    // First: what was asked for before the end is seen with it.
    stopping = stopping_.load(std::memory_order_acquire);
    const auto causes =
        wait_for_causes(stopping ? 0 : milliseconds_until(schedule_.due(), SteadyClock().now()));
    stopping = stopping || !causes;
    const Instant now = SteadyClock().now();
    schedule_.ask(causes.value_or(0), now);
    const auto due = schedule_.due();
    if (due && (stopping || *due <= now)) {
      try_to_write(schedule_.take(now));
    }
  }
  std::lock_guard lock(mutex_);
  done_ = true;
  done_changed_.notify_all();
}

void TraceKeeper::Writer::try_to_write(uint32_t causes) {
  try {
    write(causes);
  } catch (const std::exception&) {  // a job that has no memory ends in its own way
    if (may_log()) {
      log_text(LogLevel::warn, __FILE__, __LINE__,
               "the flight recorders cannot be dumped: there is no memory");
    }
  }
}

void TraceKeeper::Writer::write(uint32_t causes) {
  const std::string why = text_of(causes);
  auto bytes = copy_counters(file_->bytes(), why);
  if (!bytes) {
    if (may_log()) {
      NHA_LOG_WARN("the flight recorders cannot be dumped: {}", bytes.error().message());
    }
    return;
  }
  if (bytes->size() > options_.bytes_max) {
    if (may_log()) {
      NHA_LOG_WARN("a dump of {} bytes is not written: HA_NCCL_TRACE_MB allows {}", bytes->size(),
                   options_.bytes_max);
    }
    return;
  }
  make_room_for_traces(options_.directory, options_.bytes_max, bytes->size());
  counter_layout::FileHeader header{};
  std::memcpy(&header, bytes->data(), sizeof header);
  static std::atomic<uint32_t> number{0};  // an engine may dump in the same millisecond as another
  const std::string path = fmt::format(
      "{}/nccl-ha-{}-{}-{}{}", options_.directory, pid_, header.dumped_realtime_ns / 1'000'000,
      number.fetch_add(1, std::memory_order_relaxed), trace_ending);
  const auto made = options_.write(path, *bytes);
  if (made) {
    written_.fetch_add(1, std::memory_order_acq_rel);
  }
  if (!may_log()) {
    return;
  }
  if (made) {
    NHA_LOG_INFO("the flight recorders are in {} ({}): nccl-ha trace summary {}", path, why, path);
  } else {
    NHA_LOG_WARN("the flight recorders cannot be dumped: {} (HA_NCCL_TRACE_DIR)",
                 made.error().message());
  }
}

TraceKeeper::Options TraceKeeper::options_of(const Config& config) {
  Options options;
  options.directory = config.trace_dir.empty() ? config.counters_dir : config.trace_dir;
  options.interval = std::chrono::milliseconds(config.trace_interval_ms);
  options.bytes_max = static_cast<uint64_t>(config.trace_mb) << 20;
  options.on_signal = config.trace_signal;
  options.may_hang = options.directory != config.counters_dir;
  return options;
}

std::unique_ptr<TraceKeeper> TraceKeeper::start(std::shared_ptr<CounterFile> file,
                                                const Options& options) {
  if (!file || options.directory.empty() || options.bytes_max == 0) {
    return nullptr;
  }
  const int fd = make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (fd < 0) {
    NHA_LOG_WARN("no flight recorder will be dumped: {}",
                 fail(Errc::system, "there is no descriptor for it", errno).message());
    return nullptr;
  }
  auto writer = std::make_shared<Writer>(std::move(file), options, fd);
  std::unique_ptr<TraceKeeper> keeper(new TraceKeeper(writer));
  if (options.may_hang) {
    keep_code_loaded();
  }
  try {
    keeper->thread_ = std::thread([writer] { writer->run(); });
  } catch (const std::system_error& error) {
    NHA_LOG_WARN("no flight recorder will be dumped: there is no thread for it: {}", error.what());
    return nullptr;
  }
  if (options.on_signal) {
    keeper->signal_.emplace(fd);
  }
  return keeper;
}

TraceKeeper::TraceKeeper(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}

TraceKeeper::~TraceKeeper() {
  signal_.reset();
  if (!thread_.joinable()) {
    return;
  }
  if (!owner_.here()) {
    thread_.detach();  // a fork has no such thread
    return;
  }
  writer_->stop();
  if (writer_->wait_until_done() || !keep_code_loaded()) {
    thread_.join();
    return;
  }
  const TraceKeeper::Options& options = writer_->options();
  NHA_LOG_WARN(
      "a dump of the flight recorders is still being written to {} after {} ms; it is not waited "
      "for (HA_NCCL_TRACE_DIR)",
      options.directory, options.stop_limit.count());
  writer_->leave_alone();
  thread_.detach();
}

void TraceKeeper::ask(TraceCause cause) { writer_->ask(cause); }

uint64_t TraceKeeper::written() const { return writer_->written(); }

}  // namespace nccl_ha
