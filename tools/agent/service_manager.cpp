#include "tools/agent/service_manager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "runtime/base/clock.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

std::optional<uint64_t> number_in(const char* variable) {
  const char* text = getenv(variable);
  if (text == nullptr) {
    return std::nullopt;
  }
  uint64_t value = 0;
  const std::string_view view(text);
  const auto [at, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  return error == std::errc{} && at == view.data() + view.size() ? std::optional(value)
                                                                 : std::nullopt;
}

}  // namespace

ServiceManager ServiceManager::from_environment() {
  const char* socket = getenv("NOTIFY_SOCKET");
  std::optional<Duration> watchdog;
  const auto limit_us = number_in("WATCHDOG_USEC");
  const auto pid = number_in("WATCHDOG_PID");
  if (limit_us && *limit_us > 0 && (!pid || *pid == static_cast<uint64_t>(getpid()))) {
    watchdog = std::chrono::microseconds(*limit_us / 2);  // as sd_watchdog_enabled(3) advises
  }
  return ServiceManager(socket == nullptr ? "" : socket, watchdog);
}

Result<void> ServiceManager::reloading() const {
  SteadyClock clock;
  const auto us =
      std::chrono::duration_cast<std::chrono::microseconds>(clock.now().time_since_epoch());
  return say(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", us.count()));
}

Result<void> ServiceManager::say(const std::string& text) const {
  if (socket_.empty()) {
    return {};
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((socket_[0] != '/' && socket_[0] != '@') || socket_.size() >= sizeof address.sun_path) {
    return fail(Errc::invalid_argument, fmt::format("NOTIFY_SOCKET={} is no socket", socket_));
  }
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') {
    address.sun_path[0] = '\0';
  }
  const Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  if (!fd || sendto(fd.get(), text.data(), text.size(), MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&address), length) < 0) {
    return fail(Errc::system, "cannot tell the service manager", errno);
  }
  return {};
}

}  // namespace nccl_ha::tools
