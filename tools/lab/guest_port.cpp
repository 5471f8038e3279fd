#include "tools/lab/guest_port.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "tools/common/process.h"

namespace nccl_ha::tools::lab {
namespace {

namespace fs = std::filesystem;

constexpr auto turn_limit = std::chrono::seconds(60);
constexpr int turn_interval_ms = 1;
constexpr int answer_limit_ms = 60000;

/// A port has one user at a time.
Fd open_port(const fs::path& port) {
  const auto deadline = std::chrono::steady_clock::now() + turn_limit;
  while (true) {
    Fd fd(open(port.c_str(), O_RDWR | O_CLOEXEC));
    if (fd || errno != EBUSY || std::chrono::steady_clock::now() >= deadline) {
      return fd;
    }
    poll(nullptr, 0, turn_interval_ms);  // the kernel tells nobody that it is free
  }
}

}  // namespace

std::optional<fs::path> find_guest_port() {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/sys/class/virtio-ports", none)) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "name"), name);
    if (name == guest_port_name) {
      return fs::path("/dev") / entry.path().filename();
    }
  }
  return std::nullopt;
}

Result<std::string> ask_through(const fs::path& port, const std::string& line) {
  const Fd fd = open_port(port);
  if (!fd || write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return fail(Errc::system, fmt::format("cannot ask the lab through {}", port.string()), errno);
  }
  std::string answer;
  while (answer.find('\n') == std::string::npos) {
    pollfd waits{fd.get(), POLLIN, 0};
    char buffer[4096];
    const ssize_t got =
        poll(&waits, 1, answer_limit_ms) == 1 ? read(fd.get(), buffer, sizeof buffer) : -1;
    if (got <= 0) {
      return fail(Errc::system, "the lab does not answer its guest", errno);
    }
    answer.append(buffer, static_cast<size_t>(got));
  }
  return answer;
}

}  // namespace nccl_ha::tools::lab
