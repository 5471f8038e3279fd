// One NIC's datagram engine on one worker (usnic's "module"): the command and the data channel, and
// the passes in which it pulls out of its paths what is to be sent.  Owner thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/engine/poller.h"
#include "runtime/fabric/datagram/direct_placement.h"
#include "runtime/fabric/datagram/path_environment.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

class DatagramPort final : public Poller, private PacketSink {
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
  unsigned push(Clock& time) override;
  Duration max_poll_gap() const override;
  std::optional<Instant> next_deadline() override;
  size_t wait_fds(std::span<int> out) const override;
  bool prepare_sleep() override;

  const DatagramPortCounters& statistics() const { return env_.statistics; }
  const DatagramOptions& options() const { return env_.options; }
  size_t path_count() const { return env_.paths.size(); }
  PacketIo& io() { return env_.stage.io(); }

 private:
  // PacketSink
  Placement place(std::span<const std::byte> head, size_t total, size_t segment) override;
  void placed(size_t total) override;
  void packet(std::span<const std::byte> datagram) override;

  DatagramPath* find(const FrameHeader& header);

  // sending (port_send.cpp)
  unsigned progress_sends();
  unsigned progress_resends();
  unsigned progress_acks();
  unsigned send_from(DatagramPath& path, size_t room, size_t* bytes);

  unsigned progress_receives(PacketIo::Channels waiting, bool was_backed_off);
  unsigned dispatch();
  bool nothing_waits() const;
  void back_off_if_idle();
  void acknowledge_all();

  PathEnvironment env_;
  DirectPlacement placement_;
  Instant poll_again_at_{};  ///< while it is backed off: not before
  unsigned pass_ = 0;
  bool data_busy_ = false;     ///< the last look at the data channel found something
  bool first_packet_ = false;  ///< none came yet in this pass
  bool hears_ = true;          ///< what arrives can wake who sleeps
};

}  // namespace nccl_ha::fabric
