// The directory in which the transport agent of a host keeps its socket and its table of hints.
// Whoever could write there could tell every job of the host what to do, so it is looked at before
// anything in it is used.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "runtime/base/result.h"

namespace nccl_ha {

class AgentDirectory {
 public:
  /// The setting HA_NCCL_AGENT_DIR, or, where that is empty, /run/mpib if it is there, else
  /// /tmp/mpib.
  static std::string chosen(const std::string& setting);
  /// Errc::system with ENOENT: there is none, so no agent.  invalid_argument: it is not to be
  /// trusted, for it is no directory, belongs to neither root nor this user (below /run: to
  /// anybody, as only root makes folders there), or others may write to it.
  static Result<AgentDirectory> open(const std::string& path);
  /// For the agent itself: makes it if it is missing.  It must be this user's.
  static Result<AgentDirectory> make(const std::string& path);
  ~AgentDirectory();
  AgentDirectory(AgentDirectory&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), owner_(other.owner_), path_(std::move(other.path_)) {}
  AgentDirectory& operator=(AgentDirectory&&) = delete;

  /// For openat(2) and the like; this object's.
  int fd() const { return fd_; }
  uid_t owner() const { return owner_; }
  const std::string& path() const { return path_; }
  std::string socket_path() const { return path_ + "/" + socket_name; }

  static constexpr const char* socket_name = "agent.sock";

 private:
  AgentDirectory(int fd, uid_t owner, std::string path)
      : fd_(fd), owner_(owner), path_(std::move(path)) {}

  int fd_;
  uid_t owner_;
  std::string path_;
};

}  // namespace nccl_ha
