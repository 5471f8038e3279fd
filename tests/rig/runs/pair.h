// Two simulated hosts with a connection between them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/rig/runs/link.h"
#include "tests/rig/runs/traffic.h"

namespace nccl_ha::rig {

/// What lies between two hosts.
struct SimCables {
  size_t rails = 1;
  bool rdma = false;                        ///< the rails are RDMA NICs
  bool spare = false;                       ///< an interface besides; a rail behind the others
  sim::DeviceTraits traits{};               ///< of the NICs of both hosts
  bool one_device = false;                  ///< the rails are those of one device
  bool sout_and_sup = false;                ///< and so called
  std::shared_ptr<ha::HintSource> hints{};  ///< the sender's; may be null
};

/// Two hosts and a link between them.
class SimPair {
 public:
  /// Both have `config`, unless the receiver has one of its own.
  SimPair(uint64_t seed, const sim::Link& conditions, const Config& config = {},
          const SimCables& cables = {}, const std::optional<Config>& receivers = {});
  /// `each_round` may change the network meanwhile.
  bool connect(const std::function<void()>& each_round = {});
  void dial(sim::Ip to, uint16_t port);
  std::string transfer(const TransferPlan& plan, Duration limit);
  /// What is on the way from the sender to the receiver, and back.
  void set_links(const sim::Link& there, const sim::Link& back, size_t rail = 0);
  void post_receives(size_t count);
  bool post_send(size_t bytes);
  std::string error() const { return link_->error(); }
  /// Of data, by the last transfer().
  uint64_t bytes_wanted() const { return bytes_wanted_; }
  uint64_t places_found() const { return places_found_; }

  sim::World& world() { return world_; }
  sim::Process& sender() { return *hosts_[0]; }
  sim::Process& receiver() { return *hosts_[1]; }
  SimLink& link() { return *link_; }
  SendChannel& send_channel() { return link_->sender(); }
  ReceiveChannel& receive_channel() { return link_->receiver(); }
  Driver& send_driver() { return link_->sender_driver(); }
  Driver& receive_driver() { return link_->receiver_driver(); }

 private:
  std::vector<std::vector<std::byte>> memory_;  // the engines may use it until they are gone
  sim::World world_;
  std::vector<sim::Process*> hosts_;
  std::shared_ptr<ha::HintSource> hints_;
  std::unique_ptr<SimLink> link_;
  uint64_t bytes_wanted_ = 0;
  uint64_t places_found_ = 0;
};

}  // namespace nccl_ha::rig
