// Connections between simulated processes, driven as the plugin drives them, with checked traffic.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/connection.h"
#include "actors/listener.h"
#include "runtime/sim/world.h"

namespace nccl_ha::tools {

/// What Traffic moves.
struct TransferPlan {
  uint64_t groups = 20;  ///< grouped receives
  uint64_t seed = 1;     ///< of sizes, tags and content
  uint32_t bytes_max = 300000;
  std::function<void()> each_round;  ///< may change the network
  /// How many groups may be posted by now; empty: all.
  std::function<uint64_t()> released;
};

/// One connection: a listener at `to`, a connector at `from`.
class SimLink {
 public:
  SimLink(sim::World& world, sim::Process& from, sim::Process& to, uint16_t port);
  ~SimLink();
  /// Makes the connector only, towards any address.
  SimLink(sim::World& world, sim::Process& from, sim::Ip to, uint16_t port);

  bool wait_ready(const std::function<void()>& each_round = {});
  std::string error() const;
  SendChannel& sender() { return *send_; }
  ReceiveChannel& receiver() { return *receive_; }
  sim::World& world() { return world_; }
  sim::Process& from() { return from_; }
  sim::Process& to() { return *to_; }
  fabric::Registration register_send(void* base, size_t bytes);
  fabric::Registration register_receive(void* base, size_t bytes);

 private:
  void dial(sim::Ip to, uint16_t port, uint64_t nonce);
  sim::World& world_;
  sim::Process& from_;
  sim::Process* to_ = nullptr;
  std::shared_ptr<ListenChannel> listen_;
  std::shared_ptr<SendChannel> send_;
  std::shared_ptr<ReceiveChannel> receive_;
};

/// Sends what a plan says over a link and checks every byte, the sizes reported, and that nothing
/// is written into a buffer after its receive was reported done.
class Traffic {
 public:
  Traffic(SimLink& link, const TransferPlan& plan);
  ~Traffic();
  /// Posts and tests as NCCL would; true when all is done or something failed.
  bool step();
  /// Empty: all was right.
  std::string outcome();
  /// How many bytes are to be moved.
  uint64_t bytes() const { return bytes_; }
  /// Places that the sender saw before a completion told of them.
  uint64_t places_found() const { return places_found_; }

 private:
  struct Group;
  void post_receives();
  void post_sends();
  const CtsEntry* place_for(int tag);
  void test_receives();
  void check_quiet(const Group& group);

  SimLink& link_;
  TransferPlan plan_;
  Random random_;
  std::vector<std::unique_ptr<Group>> groups_;
  size_t receives_posted_ = 0;
  size_t receives_done_ = 0;
  size_t send_group_ = 0;
  size_t send_position_ = 0;
  std::vector<SendRequest*> open_sends_;
  std::string wrong_;
  uint64_t bytes_ = 0;
  uint64_t places_found_ = 0;
};

/// What lies between two hosts.
struct SimCables {
  size_t rails = 1;
  bool rdma = false;   ///< the rails are RDMA NICs
  bool spare = false;  ///< an interface besides; a rail behind the others
};

/// Two hosts and a link between them.
class SimPair {
 public:
  SimPair(uint64_t seed, const sim::Link& conditions, const Config& config = {},
          const SimCables& cables = {});
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
  SendChannel& send_channel() { return link_->sender(); }
  ReceiveChannel& receive_channel() { return link_->receiver(); }

 private:
  std::vector<std::vector<std::byte>> memory_;  // the engines may use it until they are gone
  sim::World world_;
  std::vector<sim::Process*> hosts_;
  std::unique_ptr<SimLink> link_;
  uint64_t bytes_wanted_ = 0;
  uint64_t places_found_ = 0;
};

}  // namespace nccl_ha::tools
