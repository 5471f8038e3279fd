// One NIC's datagram engine on one worker (usnic's "module"): the command and the data channel, the
// paths by their numbers, and the passes in which it pulls out of them what is to be sent.  Owner
// thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/poller.h"
#include "runtime/fabric/datagram/path_environment.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

class DatagramPort final : public Poller, private PacketSink, private PathTable {
 public:
  using Environment = PortServices;

  /// `interface_mtu`: bytes of an IP packet; 0 where there is no IP: what `io` takes.
  DatagramPort(std::unique_ptr<PacketIo> io, const DatagramOptions& options,
               const Environment& environment, uint32_t interface_mtu);
  ~DatagramPort() override;

  /// The path is the caller's; it must be destroyed before the port.
  Result<std::unique_ptr<Path>> create_path(const PathOptions& options, PathOwner* owner);

  // Poller
  std::string name() const override {
    return "datagrams " + text(env_.stage.io().local(Channel::command));
  }
  unsigned poll(Clock& time) override;
  Duration max_poll_gap() const override;
  std::optional<Instant> next_deadline() override;
  size_t wait_fds(std::span<int> out) const override;
  bool prepare_sleep() override;

  const DatagramPortCounters& statistics() const { return env_.statistics; }
  const DatagramOptions& options() const { return env_.options; }
  size_t path_count() const { return live_paths_; }
  PacketIo& io() { return env_.stage.io(); }

 private:
  // PacketSink
  Placement place(std::span<const std::byte> head, size_t total, size_t segment) override;
  void placed(size_t total) override;
  void packet(std::span<const std::byte> datagram) override;
  // PathTable
  void remove(DatagramPath& path) override;

  DatagramPath* find(const FrameHeader& header);

  // sending (port_send.cpp)
  unsigned progress_sends();
  unsigned progress_resends();
  unsigned progress_acks();
  unsigned send_from(DatagramPath& path, size_t room, size_t* bytes);

  unsigned dispatch();
  bool nothing_waits() const;
  void look_whether_to_doze();
  void acknowledge_all();

  PathEnvironment env_;

  std::vector<DatagramPath*> paths_;
  std::vector<uint16_t> generations_;
  std::vector<uint32_t> free_paths_;
  size_t live_paths_ = 0;
  size_t fallback_paths_ = 0;     ///< of these
  Instant look_at_{};             ///< while it is backed off: not before
  bool resends_blocked_ = false;  ///< all of them wait for their congestion windows

  // the packet being placed
  static constexpr size_t place_frames_max = 64;
  std::array<std::array<std::byte, header_bytes>, place_frames_max> place_headers_;
  std::array<iovec, place_frames_max * 2 + 1> place_parts_;
  DatagramPath* place_path_ = nullptr;
  size_t place_count_ = 0;
  size_t place_segment_ = 0;
  size_t place_rest_ = 0;           // bytes behind the placed frames, read into scratch_
  std::vector<std::byte> scratch_;  // frames without a place of their own
  unsigned pass_ = 0;
  bool data_busy_ = false;  ///< the last look at the data channel found something
  bool first_packet_ = false;
};

}  // namespace nccl_ha::fabric
