// A lab of emulated machines: Debian's kernel with Soft-RoCE, software emulation only, the host's
// files read-only under a layer in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tests/rig/guests/forwarder.h"
#include "tests/rig/guests/kernel.h"
#include "tools/lab/backend.h"
#include "tools/lab/containment.h"

namespace nccl_ha::tools::lab {

inline constexpr size_t guests_max = 5;

struct GuestOptions {
  KernelImage kernel;
  std::string cache = default_cache();
  unsigned cpus = 1;
  unsigned memory_mib = 1024;
  unsigned mtu = 4200;  ///< Soft-RoCE makes an RDMA MTU of 4096 of it
  std::string shared;   ///< a directory that guests may write to; empty: none
};

class Guests final : public Backend {
 public:
  /// `topology` must outlive it; `directory` is the lab's own.
  Guests(const Topology& topology, std::filesystem::path directory, GuestOptions options)
      : topology_(topology), directory_(std::move(directory)), options_(std::move(options)) {}
  ~Guests() override;

  Result<void> start(Loop& loop, BackendEvents events) override;
  Result<uint64_t> run(size_t host, const HostCommand& command) override;
  Result<void> kill_host(size_t host) override;
  Result<void> set_link(size_t link, const LinkState& state) override;
  Result<std::vector<LinkCounters>> read_counters() override;
  nlohmann::json describe(size_t host) override;

 private:
  struct Guest {
    pid_t pid = -1;
    Fd pidfd;
    Fd control;
    Fd monitor;
    Fd out;
    Fd err;
    Fd requests;  ///< of programs in it, to the lab
    std::string control_text;
    std::string monitor_text;
    std::string out_text;
    std::string err_text;
    std::string requests_text;
    bool greeted = false;  ///< its monitor
    bool ready = false;
    bool killed = false;
  };
  struct Job {
    size_t host = 0;
    int ends = 0;  ///< of its two streams
  };

  Result<void> start_guest(size_t host);
  std::vector<std::string> machine(size_t host) const;
  std::string console(size_t host) const;
  void read_control(size_t host);
  void read_requests(size_t host);
  void read_stream(size_t host, Stream stream);
  void guest_ended(size_t host);
  Result<void> monitor(size_t host, const nlohmann::json& command);

  const Topology& topology_;
  std::filesystem::path directory_;
  GuestOptions options_;
  Containment containment_;
  Forwarder forwarder_;
  Loop* loop_ = nullptr;
  BackendEvents events_;
  std::vector<Guest> guests_;
  std::vector<LinkState> states_;
  std::map<uint64_t, Job> jobs_;
  uint64_t next_job_ = 1;
  std::string token_;  ///< what jobs' ends are told by; not guessable by what they print
};

/// One line of shell text that runs `command` in `directory`.
std::string shell_line(const HostCommand& command, const std::string& directory);

}  // namespace nccl_ha::tools::lab
