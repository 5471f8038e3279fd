// How the emulated NICs behave: the environment variable NHA_NIC (README.md has the grammar and
// the reason of each setting).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace nccl_ha::emulated {

using Duration = std::chrono::nanoseconds;

/// Operations that a queue pair may be forbidden to ask a peer's device for.
enum Operation : uint32_t { op_send = 1, op_read = 2, op_atomic = 4, op_write = 8 };

struct Settings {
  // What there is.
  std::string state;  ///< file of the faults that all processes share; empty: none
  uint64_t host = 0;  ///< 1 to 253; 0: one of its own for each process
  uint64_t devices = 1;
  uint64_t ports = 1;
  uint64_t seed = 1;
  bool infiniband = false;
  bool grh = false;      ///< with `ib`: packets must have a global routing header
  bool subnets = false;  ///< with `ib`: a subnet for each device, behind a router
  bool vf = false;       ///< virtual functions whose node GUID nobody set
  bool apart = false;    ///< a device reaches only devices of its own number: rails without a spine
  bool dmabuf = true;
  uint64_t foreign_gids = 0;    ///< entries of other network namespaces, before its own
  bool unknown_netdev = false;  ///< GIDs name no interface
  bool foreign_shown = false;   ///< sysfs shows such entries all the same
  bool sub_functions = false;   ///< devices are sub-functions of a PCI function
  bool xdr = false;             ///< lanes of 200 Gbit/s
  bool iwarp = false;           ///< its transport
  bool no_link_layer = false;   ///< ports do not say which they have
  bool old_kernel = false;      ///< before Linux 5.7
  bool driver_answers = false;  ///< questions about ports, and that something has ended
  uint64_t ece = 0;             ///< generation of ConnectX, 0: none

  // Limits.
  uint64_t max_mr = 1 << 20;
  uint64_t max_qp = 2048;
  uint64_t max_cqe = 1 << 20;
  uint64_t max_cq = 1 << 16;
  uint64_t max_qp_wr = 16384;
  uint64_t max_inline = 512;
  uint64_t mtu = 4096;

  // Time that commands of the firmware take.
  Duration create_qp{};
  Duration modify_qp{};
  Duration destroy_qp{};
  Duration create_cq{};
  Duration create_ah{};
  Duration reg_mr{};
  Duration reg_page{};
  Duration dereg_mr{};
  Duration query{};
  uint64_t jitter = 0;  ///< percent, up or down
  Duration hang_verb = std::chrono::seconds(60);
  uint64_t hang_answer = 110;  ///< ETIMEDOUT
  Duration internal_writes = std::chrono::milliseconds(500);
  Duration internal_reset = std::chrono::seconds(2);
  Duration removal = std::chrono::milliseconds(20);
  Duration removal_rest{};  ///< until its driver has ended what it failed to end in the first pass

  // The network.
  uint64_t packet = 16384;  ///< bytes that travel together; datagrams have the MTU
  uint64_t window = 64;     ///< packets of a queue pair without an answer
  uint64_t retry_factor = 1;
  uint64_t loss = 0;  ///< of a million packets
  Duration delay{};
  uint64_t network_mtu = 1 << 20;  ///< larger packets get lost
  bool loopback_when_cut = true;

  // Memory.
  bool any_order = false;
  uint64_t tear = 64;  ///< bytes, at whose multiples what shows in any order is cut
  Duration late = std::chrono::microseconds(200);
  Duration gpu_late = std::chrono::milliseconds(5);

  uint32_t forbid = 0;  ///< Operations

  /// Ends the process where the text is wrong: a test must not run with other settings.
  static Settings parse(const char* text);
};

}  // namespace nccl_ha::emulated
