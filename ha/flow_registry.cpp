#include "ha/flow_registry.h"

#include "runtime/base/check.h"

namespace nccl_ha::ha {

FlowRegistry::FlowRegistry(const Limits& limits) : limits_(limits), slots_(limits.slots) {
  for (uint32_t slot = 0; slot < limits.slots; ++slot) {
    free_.push_back(slot);
  }
}

Result<FlowRegistry::Entered> FlowRegistry::enter(Client client, uint64_t connection,
                                                  const Flow& flow, User user) {
  if (flow.source.family == 0 || flow.destination.family == 0) {
    return fail(Errc::invalid_argument, "a flow has a source and a destination address");
  }
  const auto own = clients_.find(client);
  if (own != clients_.end()) {
    if (own->second.contains(connection)) {
      return fail(Errc::invalid_argument,
                  "connection " + std::to_string(connection) + " is registered already");
    }
    if (own->second.size() >= limits_.connections_per_client) {
      return fail(Errc::no_memory, "a process may register at most " +
                                       std::to_string(limits_.connections_per_client) +
                                       " connections");
    }
  }
  Entered entered;
  const auto known = slot_of_.find(flow);
  if (known != slot_of_.end()) {
    entered.slot = known->second;
  } else {
    if (free_.empty()) {
      return fail(Errc::no_memory, "all " + std::to_string(limits_.slots) +
                                       " slots for flows are taken; start the agent with more "
                                       "(\"slots\" in its settings)");
    }
    const auto taken = taken_.find(user);
    const size_t own_slots = taken == taken_.end() ? 0 : taken->second;
    if (user != 0 && !within_share(own_slots, flows() - own_slots, limits_.slots)) {
      return fail(Errc::no_memory,
                  "user " + std::to_string(user) + " has " + std::to_string(own_slots) + " of " +
                      std::to_string(limits_.slots) +
                      " slots for flows, and the others are kept for other users; start the agent "
                      "with more (\"slots\" in its settings)");
    }
    entered = {free_.front(), true};
    slots_[entered.slot].user = user;
    ++taken_[user];
    free_.pop_front();
    slot_of_.emplace(flow, entered.slot);
    slots_[entered.slot].flow = flow;
  }
  ++slots_[entered.slot].connections;
  ++connections_;
  clients_[client].emplace(connection, entered.slot);
  return entered;
}

FlowRegistry::Left FlowRegistry::release(uint32_t slot) {
  Slot& at = slots_[slot];
  NHA_ASSERT(at.connections != 0, "a connection that leaves has a slot");
  --connections_;
  const Left left{at.flow, slot, --at.connections == 0};
  if (left.last) {
    slot_of_.erase(at.flow);
    if (--taken_[at.user] == 0) {
      taken_.erase(at.user);
    }
    free_.push_back(slot);
  }
  return left;
}

Result<FlowRegistry::Left> FlowRegistry::leave(Client client, uint64_t connection) {
  const auto own = clients_.find(client);
  if (own == clients_.end() || !own->second.contains(connection)) {
    return fail(Errc::invalid_argument,
                "connection " + std::to_string(connection) + " is not registered");
  }
  const uint32_t slot = own->second.at(connection);
  own->second.erase(connection);
  if (own->second.empty()) {
    clients_.erase(own);
  }
  return release(slot);
}

std::vector<FlowRegistry::Left> FlowRegistry::drop(Client client) {
  std::vector<Left> ended;
  const auto own = clients_.find(client);
  if (own == clients_.end()) {
    return ended;
  }
  for (const auto& [connection, slot] : own->second) {
    const Left left = release(slot);
    if (left.last) {
      ended.push_back(left);
    }
  }
  clients_.erase(own);
  return ended;
}

const uint32_t* FlowRegistry::slot_of(const Flow& flow) const {
  const auto found = slot_of_.find(flow);
  return found == slot_of_.end() ? nullptr : &found->second;
}

}  // namespace nccl_ha::ha
