// The control verbs of a device, called on a thread of its own: firmware takes its time for them,
// and one that hangs answers after a minute, or never.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/fabric/verbs/library.h"
#include "runtime/fabric/verbs/thread_times.h"

namespace nccl_ha::fabric::verbs {

/// Whether that errno value of a question means that the host or the device was short of something,
/// or has too many: neither that the firmware lives, nor that it does not.
constexpr bool is_shortage(int error) {
  return error == ENOMEM || error == EAGAIN || error == ENOSPC || error == EINVAL;
}

/// What became of a command.  The conductor sets it, any thread reads it.
struct Answer {
  static constexpr int open = -1;
  /// 0: done, else an errno value.
  std::atomic<int> result{open};

  bool over() const { return error() != open; }
  bool confirmed() const { return error() == 0; }
  int error() const { return result.load(std::memory_order_acquire); }
};

/// One command at a time.  Any thread.  Its thread starts with the first command; where the host
/// gives none, callers wait for what they ask.
class Conductor {
 public:
  using Command = std::function<void()>;
  /// What is taken first.  Those of one rank are taken in their order.
  enum class Rank : uint8_t {
    stop,  ///< a failover waits for it, or a worker
    make,
    end,  ///< nobody waits
  };

  Conductor(const Library& library, ibv_context* context);
  /// Everything is done (drain).
  ~Conductor();
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  /// `tell`, if any, is called when the command has taken its time.  `allowed`: what it may take
  /// where nothing hangs, if that is longer than others do.
  void add(Rank rank, Command command, Command tell = {}, Duration allowed = {});
  /// Asks the firmware something, after all of rank stop that was added before.  0: it lives; see
  /// is_shortage().
  std::shared_ptr<const Answer> ask();
  /// The same at once.  For commands.
  int question() const;
  /// Waits for an answer of its own, at most so long, and not for a command that hangs already.
  /// False: it is not there.
  bool await(const Answer& answer, Duration limit);
  /// The same while `patient`, which is asked every few milliseconds.
  bool await(const Answer& answer, const std::function<bool()>& patient);
  /// Waits until all is done.  False: for so long nothing was.
  bool drain(Duration limit);
  /// How long the command under way has been so, of this host's time and without what its thread
  /// waited for a processor; 0: there is none.
  Duration busy() const;
  /// It takes as long as that, and longer than it may.
  bool hangs(Duration limit) const;

  /// Of a simulated device: a command takes virtual time.  Does what is due, and says when the next
  /// is; nullopt: there is none.  Its caller's thread is the simulation's only one.
  std::optional<Instant> pump(Instant now);

 private:
  static constexpr size_t ranks = 3;
  struct Order {
    Command command;
    Command tell;
    std::shared_ptr<const Answer> question;  ///< that it asks, and nothing else
    Duration allowed{};
  };
  void put(Rank rank, Order order);
  bool none_waits() const;
  Order take();
  void run();

  const Library& library_;
  ibv_context* const context_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable done_;
  std::array<std::deque<Order>, ranks> waiting_;
  uint64_t finished_ = 0;
  bool under_way_ = false;
  bool ending_ = false;
  std::thread thread_;
  Duration under_way_for() const;
  ThreadWatch watch_;
  // Of the command under way.
  std::atomic<int64_t> begun_ns_{0};  ///< 0: there is none
  std::atomic<Duration> allowed_{};
  // Of a simulated device.
  void tell();
  Instant now_{};
  Instant busy_since_{};
  Instant busy_until_{};
  Command untold_;  ///< of the command that takes until then
};

}  // namespace nccl_ha::fabric::verbs
