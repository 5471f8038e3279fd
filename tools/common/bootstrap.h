// How the ranks of one run find each other and keep in step: a star of TCP connections with rank 0
// in the middle.  It carries set-up, barriers and results; the measured traffic never uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/streams/admission.h"

namespace nccl_ha::tools {

/// The ranks of one run.  One thread.  Every wait ends: with a result, at the deadline
/// (Errc::timed_out), or when another rank failed or vanished (Errc::closed, and the text names the
/// rank and the reason).  Once one call failed all later ones fail.
class World {
 public:
  struct Options {
    uint32_t rank = 0;
    uint32_t size = 1;
    std::string host;       ///< where rank 0 listens; not used by rank 0 when listen_fd is given
    uint16_t port = 0;      ///< its TCP port
    int listen_fd = -1;     ///< rank 0 only: a listening socket to use (taken over)
    uint64_t cookie = 0;    ///< equal in all ranks of a run; others are rejected
    Instant join_deadline;  ///< until when all ranks must have come
    Instant deadline;       ///< end of the whole run
  };
  /// Joins the run; returns when all ranks are there.
  static Result<std::unique_ptr<World>> join(const Options& options);

  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  uint32_t rank() const { return options_.rank; }
  uint32_t size() const { return options_.size; }
  Instant deadline() const { return options_.deadline; }

  /// Every rank's text, by rank, on rank 0; nothing on the others.
  Result<std::vector<std::string>> gather(const std::string& mine);
  /// Every rank's text, by rank.
  Result<std::vector<std::string>> all_gather(const std::string& mine);
  /// Rank 0's text; what the others pass is ignored.
  Result<std::string> broadcast(const std::string& from_zero);
  /// A number that rank 0 draws at random, never 0.
  Result<uint64_t> draw();
  Result<void> barrier();

  /// Waits until `fd` is readable.  Rank 0 waits here for its orders.
  Result<void> wait_readable(int fd);

  /// Looks, without waiting, whether another rank failed or the deadline passed.
  Result<void> check();

  /// Tells the others why this rank gives up.  Best effort.
  void announce_failure(const std::string& why);

 private:
  struct Peer {
    uint32_t rank = 0;
    int fd = -1;
    std::string input;  ///< bytes not yet taken
    Origin origin;      ///< where an unknown one comes from
  };
  explicit World(const Options& options) : options_(options) {}

  Result<void> join_as_root();
  Result<void> join_as_member();
  void accept_into(std::vector<Peer>& unidentified) const;
  Result<void> greet(Peer& unknown, bool& settled);
  Result<void> send_to(Peer& peer, uint16_t type, const std::string& body);
  Result<std::string> receive_from(Peer& peer);
  /// Takes one complete frame out of the peer's input, if there is one.
  Result<bool> take_frame(Peer& peer, uint16_t& type, std::string& body);
  Result<void> pump(int timeout_ms, int extra_fd, bool* extra_ready);
  Result<void> read_some(Peer& peer);
  Result<void> look_for_failure(const Peer& peer);
  Error peer_failed(const std::string& text);
  std::string missing_ranks() const;
  int milliseconds_left(Instant until) const;

  Options options_;
  std::vector<Peer> peers_;  ///< rank 0: all others in order; else only rank 0
  bool failed_ = false;
  std::string failure_;
};

/// A listening TCP socket on the loopback interface with a port of the system's choice.
struct LoopbackListener {
  int fd = -1;
  uint16_t port = 0;
};
Result<LoopbackListener> listen_on_loopback();

}  // namespace nccl_ha::tools
