#include "runtime/telemetry/agent_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

namespace nccl_ha {
namespace {

constexpr const char* of_the_system = "/run/mpib";
constexpr const char* of_the_seed = "/tmp/mpib";

Error untrusted(const std::string& path, const char* why) {
  return fail(
      Errc::invalid_argument,
      fmt::format("{} is not used for the transport agent: {} (HA_NCCL_AGENT_DIR; `chmod 755` "
                  "and `chown` it, or name another directory)",
                  path, why));
}

/// Directly below /run, where only root makes folders: whose it is, root has decided.
bool given_by_root(const std::string& path) {
  struct stat above {};
  return path.starts_with("/run/") && path.find('/', 5) == std::string::npos &&
         lstat("/run", &above) == 0 && S_ISDIR(above.st_mode) && above.st_uid == 0 &&
         (above.st_mode & 022) == 0;
}

}  // namespace

std::string AgentDirectory::chosen(const std::string& setting) {
  if (!setting.empty()) {
    return setting;
  }
  struct stat info {};
  return lstat(of_the_system, &info) == 0 ? of_the_system : of_the_seed;
}

Result<AgentDirectory> AgentDirectory::open(const std::string& path) {
  if (path.empty() || path.front() != '/') {
    return fail(Errc::invalid_argument,
                fmt::format("HA_NCCL_AGENT_DIR={}: an absolute path is needed", path));
  }
  if (path.size() + 1 + std::string_view(socket_name).size() >= sizeof(sockaddr_un::sun_path)) {
    return fail(
        Errc::invalid_argument,
        fmt::format("HA_NCCL_AGENT_DIR={}: too long for the address of a UNIX socket, which has "
                    "at most {} bytes",
                    path, sizeof(sockaddr_un::sun_path) - 1));
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    if (error == ELOOP || error == ENOTDIR) {
      return untrusted(path, "it is no directory");
    }
    return fail(Errc::system, fmt::format("cannot open the agent's directory {}", path), error);
  }
  struct stat info {};
  const bool known = fstat(fd, &info) == 0;
  AgentDirectory directory(fd, info.st_uid, path);
  if (!known) {
    return fail(Errc::system, fmt::format("cannot look at {}", path), errno);
  }
  if (info.st_uid != 0 && info.st_uid != geteuid() && !given_by_root(path)) {
    return untrusted(path, "it belongs to neither root nor this user");
  }
  if ((info.st_mode & 022) != 0) {
    return untrusted(path, "others may write to it");
  }
  return directory;
}

Result<AgentDirectory> AgentDirectory::make(const std::string& path) {
  if (!path.empty() && mkdir(path.c_str(), 0755) == 0) {
    // The creation mask may have taken away what readers need.
    static_cast<void>(chmod(path.c_str(), 0755));
  } else if (!path.empty() && errno != EEXIST) {
    return fail(Errc::system, fmt::format("cannot make the agent's directory {}", path), errno);
  }
  auto directory = open(path);
  if (directory && directory->owner() != geteuid()) {
    return untrusted(path, "it is another user's");
  }
  return directory;
}

AgentDirectory::~AgentDirectory() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

}  // namespace nccl_ha
