// The cables between emulated machines: carries Ethernet frames between their datagram sockets.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "tools/lab/links.h"
#include "tools/lab/topology.h"

namespace nccl_ha::tools::lab {

/// Where the forwarder receives what a port's machine sends.
std::filesystem::path forwarder_socket(const std::filesystem::path& directory, size_t port);
/// Where the machine receives.
std::filesystem::path machine_socket(const std::filesystem::path& directory, size_t port);

/// State that the lab's process writes and the forwarding process reads, and counters the other
/// way.
struct SharedDirection {
  std::atomic<bool> blocked{false};
  std::atomic<uint32_t> loss{0};
  std::atomic<uint64_t> bits_per_second{0};
  std::atomic<uint64_t> frames{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> dropped{0};
};
struct SharedLink {
  std::atomic<bool> carrier{true};
  std::atomic<uint32_t> mtu{0};
  std::array<SharedDirection, 2> direction;
};

/// A process of its own, so that nothing that the lab's process does delays a frame.  It ends with
/// the containment that it was started in.
class Forwarder {
 public:
  Forwarder() = default;
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  /// Binds all ports' sockets below `directory` and starts to forward.  `in_child` runs first in
  /// the new process.
  Result<void> start(const Topology& topology, const std::filesystem::path& directory,
                     const std::function<void()>& in_child);
  void set(size_t link, const LinkState& state);
  std::vector<LinkCounters> counters() const;
  pid_t process() const { return pid_; }

 private:
  SharedLink* links_ = nullptr;
  size_t count_ = 0;
  pid_t pid_ = -1;
};

}  // namespace nccl_ha::tools::lab
