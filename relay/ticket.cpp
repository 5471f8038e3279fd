#include "relay/ticket.h"

#include <algorithm>
#include <string_view>

namespace nccl_ha::relay {
namespace {

constexpr std::string_view purpose_ticket = "ticket of a process";

}  // namespace

void put_ticket(WireWriter& out, const Ticket& ticket) {
  out.put(ticket.key);
  out.put(number(ticket.node));
  out.put(ticket.incarnation);
  out.put(ticket.user);
  out.put_bytes(ticket.id);
}

Ticket take_ticket(WireReader& in) {
  Ticket ticket;
  ticket.key = in.take<uint32_t>();
  ticket.node = NodeId{in.take<uint64_t>()};
  ticket.incarnation = in.take<uint32_t>();
  ticket.user = in.take<uint32_t>();
  const auto id = in.take_bytes(ticket.id.size());
  std::copy(id.begin(), id.end(), ticket.id.begin());
  return ticket;
}

NamedKey make_named_key(const HashKey& cluster, const Ticket& ticket) {
  WireWriter all;
  put_ticket(all, ticket);
  return {ticket, derive_key(cluster, purpose_ticket, all.bytes())};
}

void Tickets::add(const NamedKey& ticket) {
  const std::lock_guard lock(mutex_);
  if (!kept_.empty() && kept_.back().ticket == ticket.ticket) {
    return;
  }
  kept_.push_back(ticket);
  if (kept_.size() > kept_max) {
    kept_.pop_front();
  }
}

std::optional<NamedKey> Tickets::newest() const {
  const std::lock_guard lock(mutex_);
  return kept_.empty() ? std::nullopt : std::optional(kept_.back());
}

std::optional<NamedKey> Tickets::find(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, ticket, &NamedKey::ticket);
  return found == kept_.end() ? std::nullopt : std::optional(*found);
}

std::optional<NamedKey> SealKeys::to_dial(const Ticket& peer, uint32_t key) const {
  if (cluster_ == nullptr) {
    return tickets_ ? tickets_->newest() : std::nullopt;
  }
  Ticket itself;
  itself.key = cluster_->find(key) != nullptr ? key : cluster_->first();
  return find(peer.given() ? peer : itself);
}

std::optional<NamedKey> SealKeys::find(const Ticket& named) const {
  if (cluster_ == nullptr) {
    return tickets_ ? tickets_->find(named) : std::nullopt;
  }
  const HashKey* key = cluster_->find(named.key);
  if (key == nullptr) {
    return std::nullopt;
  }
  return named.given() ? make_named_key(*key, named) : NamedKey{named, *key};
}

}  // namespace nccl_ha::relay
