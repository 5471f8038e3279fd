// A lab of network namespaces: each host has a network, a name, a /sys and a /dev/shm of its own.
#pragma once

#include <optional>

#include "tools/lab/backend.h"
#include "tools/lab/containment.h"

namespace nccl_ha::tools::lab {

class Namespaces final : public Backend {
 public:
  /// `topology` must outlive it.  `mtu` in bytes, for all interfaces.
  Namespaces(const Topology& topology, unsigned mtu) : topology_(topology), mtu_(mtu) {}
  ~Namespaces() override;

  Result<void> start(Loop& loop, BackendEvents events) override;
  Result<uint64_t> run(size_t host, const HostCommand& command) override;
  Result<void> kill_host(size_t host) override;
  Result<void> set_link(size_t link, const LinkState& state) override;
  Result<std::vector<LinkCounters>> read_counters() override;
  nlohmann::json describe(size_t host) override;

 private:
  struct Host {
    pid_t holder = -1;        ///< the process that keeps the namespaces
    pid_t holder_inside = 0;  ///< its number in the lab's own process namespace
    Fd leash;                 ///< the holder ends when this closes
    std::vector<Fd> spaces;
    bool killed = false;
  };
  struct Job {
    size_t host = 0;
    pid_t pid = -1;
    Fd pidfd;
    Fd out;
    Fd err;
  };

  Result<void> make_host(size_t host);
  Result<void> wire_up();
  Result<void> wait_for_carrier(size_t host);
  Result<void> set_rate(size_t port, bool inside, uint64_t bits_per_second);
  Result<void> set_rules();
  Result<void> count_drops();
  std::function<Result<void>()> inside(size_t host);
  std::string port_name(size_t port) const;
  bool read_output(uint64_t id, Stream stream);
  void reap(uint64_t id);

  const Topology& topology_;
  unsigned mtu_;
  Containment containment_;
  Loop* loop_ = nullptr;
  BackendEvents events_;
  std::vector<Host> hosts_;
  std::vector<LinkState> states_;
  std::vector<std::array<uint64_t, 2>> dropped_;  ///< by rules that have been replaced since
  std::map<uint64_t, Job> jobs_;
  uint64_t next_job_ = 1;
};

/// Replaces this process by `command` inside the host that the process `holder` keeps.
Error enter_host(pid_t holder, const std::vector<std::string>& command);

}  // namespace nccl_ha::tools::lab
