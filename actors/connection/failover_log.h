// What the log says of failovers: a line for each NIC and host of a peer, not one for each
// connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

/// One for each worker.  The first line of a kind about a NIC and a peer's host is logged at once.
/// What follows within a window is logged together at its end: in the line's own words if it is
/// one, else in one line with counts.  While several come in each window, windows get longer.
/// With HA_NCCL_DEBUG=2 each line is logged at once.  Owner thread only.
class FailoverLog {
 public:
  static constexpr Duration first_window = std::chrono::milliseconds(200);
  static constexpr Duration longest_window = std::chrono::milliseconds(3200);

  enum class Kind : uint8_t {
    not_up,           ///< a path of the handshake failed
    down,             ///< a path that was in use is closed
    stuck,            ///< its fence is not complete
    failover,         ///< its fence is complete, what it held goes again
    moved_to_shadow,  ///< traffic of a connection
    moved,            ///< the same, to another rail of its device
    moved_back,
    back,         ///< a path is in use again
    stream_lost,  ///< the control connection
  };
  struct Counts {
    Duration stall{};  ///< how long nothing moved
    uint64_t chunks_again = 0;
    uint64_t bytes_again = 0;
    uint64_t chunks_kept = 0;
    uint64_t bytes_kept = 0;
  };
  struct Line {
    Kind kind = Kind::down;
    uint32_t connection = 0;  ///< a number of its own on this worker
    std::string nic;          ///< of this host
    std::string peer;         ///< its host
    Counts counts;
  };

  explicit FailoverLog(Context& context);
  /// Logs what is left.
  ~FailoverLog();
  FailoverLog(const FailoverLog&) = delete;
  FailoverLog& operator=(const FailoverLog&) = delete;
  /// That of the context's worker, for as long as anybody keeps it.
  static std::shared_ptr<FailoverLog> of(Context& context);

  /// `text` makes the line as it reads alone; of lines that are only counted it is not called.
  void warn(const Line& line, const std::function<std::string()>& text);

 private:
  using Key = std::tuple<Kind, std::string, std::string>;
  /// Lines with one key.
  struct Burst {
    Duration window = first_window;
    Instant ends{};    ///< of the window
    size_t lines = 0;  ///< gathered in it; with counts of all of them:
    std::set<uint32_t> connections;
    Counts total;
    std::string text;  ///< of the first of them
  };

  void arm();
  void on_window_over();
  static void log_gathered(const Key& key, const Burst& burst);
  static std::string text_of(const Key& key, const Burst& burst);

  Context& context_;
  Timer timer_;  ///< armed while something is gathered
  std::map<Key, Burst> bursts_;
};

}  // namespace nccl_ha
