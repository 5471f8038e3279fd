#include "tests/rig/runs/pair.h"

namespace nccl_ha::rig {

SimPair::SimPair(uint64_t seed, const sim::Link& conditions, const Config& config,
                 const SimCables& cables, const std::optional<Config>& receivers)
    : world_(seed), hints_(cables.hints) {
  world_.network().all = conditions;
  for (uint8_t i = 1; i <= 2; ++i) {
    std::vector<sim::Ip> addresses;
    for (size_t rail = 0; rail < cables.rails + (cables.spare ? 1 : 0); ++rail) {
      addresses.push_back(sim::ip(10, static_cast<uint8_t>(rail), 0, i));
    }
    hosts_.push_back(*world_.add_process(addresses, i == 2 ? receivers.value_or(config) : config,
                                         cables.rdma ? cables.rails : 0, cables.traits));
    fabric::RailDevices& devices = hosts_.back()->devices;
    for (size_t rail = 1; cables.one_device && rail < cables.rails; ++rail) {
      devices.devices[devices.count++] = rail;
    }
    devices.sout_and_sup = cables.sout_and_sup;
  }
}

bool SimPair::connect(const std::function<void()>& each_round) {
  link_ = std::make_unique<SimLink>(world_, *hosts_[0], *hosts_[1], hints_);
  return link_->wait_ready(each_round);
}

void SimPair::dial(sim::Ip to, uint16_t port) {
  link_ = std::make_unique<SimLink>(world_, *hosts_[0], to, port);
}

std::string SimPair::transfer(const TransferPlan& plan, Duration limit) {
  Traffic traffic(*link_, plan);
  static_cast<void>(world_.run_until([&] { return traffic.step(); }, limit));
  bytes_wanted_ = traffic.bytes();
  places_found_ = traffic.places_found();
  return traffic.outcome();
}

void SimPair::set_links(const sim::Link& there, const sim::Link& back, size_t rail) {
  const sim::Ip from = sender().addresses[rail];
  const sim::Ip to = receiver().addresses[rail];
  world_.network().set_link(from, to, there);
  world_.network().set_link(to, from, back);
}

void SimPair::post_receives(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    auto& bytes = memory_.emplace_back(1 << 20);
    void* data = bytes.data();
    size_t size = bytes.size();
    int tag = 0;
    void* memory = const_cast<fabric::Registration*>(link_->register_receive(data, size));
    void* request = nullptr;
    static_cast<void>(link_->to_plugin().call(&SimPlugin::Table::irecv, link_->receive_comm(), 1,
                                              &data, &size, &tag, &memory, nullptr, &request));
  }
}

bool SimPair::post_send(size_t bytes) {
  auto& source = memory_.emplace_back(bytes);
  auto* memory = const_cast<fabric::Registration*>(link_->register_send(source.data(), bytes));
  void* request = nullptr;
  return world_.run_until([&] { return link_->sender().match(0) != nullptr; },
                          std::chrono::seconds(5)) &&
         link_->from_plugin().call(&SimPlugin::Table::isend, link_->send_comm(), source.data(),
                                   bytes, 0, memory, nullptr,
                                   &request) == abi::NcclResult::success &&
         request != nullptr;
}

}  // namespace nccl_ha::rig
