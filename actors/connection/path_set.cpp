#include "actors/connection/path_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "actors/connection/limits.h"
#include "ha/error_class.h"
#include "runtime/engine/engine.h"

namespace nccl_ha {
namespace {

/// Places for control messages and for heartbeats beside the data.
constexpr uint32_t control_posts = ControlBox::slots + 2;

/// Writes of a queue pair that may be under way: more than any link needs to be kept busy, and the
/// clear-to-sends of all open groups with those of which nobody has heard yet that they are done.
/// The device goes round in its ring of them, so that a longer one would only push other things
/// out of the caches.  Together with the fabric's own the ring has 127: devices round up to a power
/// of two, some after adding one.
constexpr uint32_t rdma_writes = 123;
static_assert(rdma_writes >= groups_apart_max + rdma_writes / 4 + 1 + 2 * control_posts);

/// Receives beyond what the peer may use, so that used ones can be replaced later.
constexpr uint32_t spare_receives = 16;

const sockaddr* as_sockaddr(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

void PathSet::end() noexcept {
  for (Lane& lane : lanes_) {
    lane.owned.reset();
  }
  for (Lane& lane : lanes_) {
    lane.tables = {};
    lane.control.known.reset();
  }
  memory_.clear();
}

void PathSet::clear() {
  end();
  lanes_ = {};  // with the boxes, which nobody writes any more
  count_ = 0;
  primaries_ = 0;
  rail_lanes_ = 0;
}

bool PathSet::any_usable(std::span<const Lane> lanes) {
  return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.usable; });
}

/// Without heartbeats nothing shows it of one that stands by.
bool PathSet::is_steady(const Lane& lane) const {
  return lane.health.steady() || state_.context->config().heartbeat_ms == 0;
}

bool PathSet::other_steady(size_t lane) const {
  return std::ranges::any_of(lanes(), [&](const Lane& other) {
    return other.usable && at(other) != lane && is_steady(other);
  });
}

void PathSet::count_missing() {
  state_.counters->paths_missing.set(
      static_cast<uint64_t>(std::ranges::count(lanes(), false, &Lane::usable)));
}

uint64_t PathSet::life() const {
  uint64_t all = 0;
  for (const Lane& lane : lanes()) {
    all += lane.health.life();
  }
  return all;
}

Result<void> PathSet::make_first(const sockaddr_storage& local, size_t count) {
  NHA_DASSERT(count_ == 0 && count >= 1 && count <= paths_max, "first paths are made once");
  local_ = local;
  local_number_ = state_.provider.place_number(state_.attachment, as_sockaddr(local_));
  primaries_ = count_ = count;
  // What the check of a path found out is known in time for the message of whoever gives up.
  const Config& config = state_.context->config();
  const Duration first_limit = config.enable_backup
                                   ? std::chrono::milliseconds(config.connect_timeout_ms * 9 / 10)
                                   : Duration(0);
  for (Lane& lane : lanes()) {
    lane.at = state_.attachment;
    lane.local = local;
    auto made = make(lane, first_limit);
    if (made) {
      continue;
    }
    if (!config.enable_backup || !ha::is_absence(made.error().sys)) {
      return made;
    }
    lane.decided = true;
    lane.early_failure = made.error();
  }
  return {};
}

Result<void> PathSet::connect_first(const std::vector<PathEnd>& peers) {
  for (size_t i = 0; i < primaries_; ++i) {
    Lane& lane = lanes_[i];
    if (!state_.backup && lane.early_failure) {
      return *lane.early_failure;  // the peer replaces no path
    }
    if (!state_.backup && !peers[i].missing.empty()) {
      return from_peer(peers[i].missing);
    }
    if (!lane.owned.path || lane.early_failure) {
      continue;
    }
    if (!peers[i].missing.empty()) {
      lane.path().fail(from_peer(peers[i].missing));
    } else if (auto connected = connect(lane, peers[i]); !connected) {
      return connected;
    }
  }
  return {};
}

void PathSet::add_rails(const ha::RailAgreement& agreed) {
  for (size_t i = 0; i < size_t{agreed.rails} * agreed.lanes && count_ < lanes_.size(); ++i) {
    Lane& lane = lanes_[count_++];
    lane.rail = static_cast<uint8_t>(1 + i / agreed.lanes);
    lane.key_slot = static_cast<uint8_t>(lane.rail - 1);
    lane.at = state_.attachment;  // until it has a place of its own
    ++rail_lanes_;
  }
}

void PathSet::add_shadows(size_t count) {
  for (size_t i = 0; i < count && count_ < lanes_.size(); ++i) {
    Lane& lane = lanes_[count_++];
    lane.shadow = true;
    lane.shadow_number = static_cast<uint8_t>(i);
    lane.key_slot = static_cast<uint8_t>(state_.rails.rails + i);
    lane.at = state_.attachment;
  }
}

void PathSet::move_to(Lane& lane, const fabric::Place& place) {
  lane.at = place.at;
  static_cast<void>(place.address.to_sockaddr(0, &lane.local));
}

/// With the NIC where its path is made now.
void PathSet::name_counters(Lane& lane) {
  if (!state_.counted.file) {
    return;  // nobody looks
  }
  const char* kind = lane.shadow ? "shadow" : "path";
  const std::string label =
      fmt::format("{} {} {}", kind, &lane - lanes_.data(), interface_of(lane));
  if (lane.counters.id() == 0) {
    lane.counters = CounterBlock<PathCounters>(state_.counted, label);
  } else {
    lane.counters.rename(state_.counted.parent, label);
  }
}

Result<void> PathSet::make(Lane& lane, Duration connect_limit) {
  if (!state_.holds(!lane.usable, "a path that carries traffic is not replaced")) {
    return nccl_ha::fail(Errc::internal, "the path before is still in use");
  }
  if (state_.ready() && state_.provider.is_busy(lane.at)) {
    return nccl_ha::fail(
        Errc::system,
        fmt::format("{} takes long with something: does its firmware hang?", interface_of(lane)),
        EBUSY);
  }
  if (!lane.elsewhere()) {
    renew_local(lane);
  }
  name_counters(lane);
  lane.traits = state_.provider.traits(lane.at);
  fabric::PathOptions options;
  options.domain = state_.domain;
  options.writes_max = lane.traits.placed_by_nic
                           ? rdma_writes
                           : static_cast<uint32_t>(sends_max + cts_slots) + control_posts;
  options.receives_spare = spare_receives - credits_together;
  options.receives_max = needs_.receives + control_posts + spare_receives;
  options.active = needs_.active;
  options.flushes_max = needs_.flushes;
  options.fallback = is_fallback(lane);
  options.traffic_class = state_.traffic_class;
  options.service_level = state_.service_level;
  options.connect_limit = connect_limit;
  options.shared = state_.shared;
  options.counted_under = lane.counters.id();
  lane.owned.reset();
  lane.writes_open = 0;
  lane.bytes_open = 0;
  lane.credits_open = 0;
  lane.credits_owed = 0;
  lane.control.heartbeats_open = 0;
  lane.control.confirms_open = 0;
  lane.control.confirm_due = false;
  flushes_acks_ = flushes_acks_ || !lane.traits.acknowledged_by_nic;
  // On one of the two hosts the NIC may be the primaries' own, which the other cannot know.
  lane.foreign_keys = lane.elsewhere() && state_.traits.keys_per_device;
  lane.rejected = false;
  if (auto equipped = equip(lane, options); !equipped) {
    note_refusal(lane, equipped.error());
    return equipped;
  }
  auto path = state_.provider.create_path(*state_.context, lane.at, as_sockaddr(lane.local),
                                          options, needs_.owner);
  if (!path) {
    return path.error();
  }
  lane.owned = std::move(*path);
  lane.traits = lane.path().traits();
  lane.counters->made.add();
  lane.counters->epoch.set(lane.epoch);
  for (uint32_t credit = 0; credit < options.receives_max; ++credit) {
    if (!post_credit(lane)) {
      return nccl_ha::fail(Errc::internal, "cannot post the first receives of a path");
    }
  }
  return {};
}

/// Its NIC may have another address than when the connection began.
void PathSet::renew_local(Lane& lane) {
  const auto before = IpAddress::from_sockaddr(as_sockaddr(local_));
  if (!before || places_.empty()) {
    return;
  }
  std::optional<IpAddress> now;
  const auto interfaces = state_.provider.interfaces();
  for (const fabric::NetInterface& one : *interfaces) {
    const std::vector<IpAddress> all = one.all_addresses();
    const auto its = std::ranges::find_if(
        all, [&](const IpAddress& address) { return address.same_as(*before); });
    if (one.ifindex != 0 && its != all.end()) {
      now = *its;  // its number may be another one
    }
  }
  for (size_t i = 0; i < places_.size() && !(now && now->same_subnet(*before)); ++i) {
    const fabric::Place& place = places_[i];
    if (place.at.kind == lane.at.kind && place.number == local_number_ &&
        place.address.family == before->family && (!now || place.address.same_subnet(*before))) {
      now = place.address;
    }
  }
  if (now) {
    static_cast<void>(now->to_sockaddr(0, &lane.local));
  }
}

Result<void> PathSet::equip(Lane& lane, fabric::PathOptions& options) {
  const bool anew = std::exchange(lane.unproven, false);
  if (anew) {
    lane.control.box.reset();
  }
  const std::shared_ptr<void> table = needs_.written(at(lane), anew);
  auto source = known(lane, needs_.source, needs_.source_bytes);
  auto written = source ? known(lane, table, needs_.written_bytes) : source;
  if (!written) {
    return written.error();
  }
  lane.tables.source = std::move(*source);
  lane.tables.written = std::move(*written);
  lane.tables.own = {reinterpret_cast<uint64_t>(table.get()), 0};
  options.memory = {lane.tables.source, lane.tables.written};
  if (!state_.context->config().enable_backup) {
    return {};
  }
  LaneControl& control = lane.control;
  if (!control.box) {
    control.box = std::make_shared<ControlBox>();
  }
  auto box = known(lane, control.box, sizeof *control.box);
  if (!box) {
    return box.error();
  }
  control.known = std::move(*box);
  options.memory.push_back(control.known);
  return {};
}

Result<std::shared_ptr<fabric::OwnMemory>> PathSet::known(const Lane& lane,
                                                          std::shared_ptr<void> bytes,
                                                          size_t length) {
  const void* const base = bytes.get();
  for (const Known& own : memory_) {
    if (own.bytes == base && own.serves(lane)) {
      return own.memory;
    }
  }
  auto made = state_.provider.own_memory(lane.at, state_.domain, std::move(bytes), length);
  if (made) {
    std::erase_if(memory_, [&](const Known& own) {  // of what was the device before
      return own.per_device && own.at.kind == lane.at.kind && own.at.device == lane.at.device &&
             own.at.incarnation < lane.at.incarnation;
    });
    memory_.push_back({lane.at, lane.traits.keys_per_device, base, *made});
  }
  return made;
}

/// Of a path that has its address.
void PathSet::take_keys(Lane& lane) {
  lane.tables.source_key = lane.tables.source->keys().local_key;
  lane.tables.own.key = lane.tables.written->keys().remote_key;
  if (lane.control.known) {
    lane.control.source_key = lane.control.known->keys().local_key;
    lane.control.written_key = lane.control.known->keys().remote_key;
  }
}

Result<void> PathSet::connect(Lane& lane, const PathEnd& peer) {
  lane.tables.peer = peer.table;
  lane.control.peer_box = lane.control.box ? peer.control_address : 0;
  lane.control.peer_key = peer.control_key;
  return lane.path().connect(peer.address.view());
}

PathEnd PathSet::end_of(Lane& lane) {
  PathEnd end;
  if (lane.early_failure) {
    end.missing = lane.early_failure->message();
    return end;
  }
  const auto bytes = lane.path().local_address();
  const auto address = PathAddress::from(bytes);
  if (!address || address->length == 0) {
    end.missing = fmt::format("a path's address has {} bytes, 1 to {} can be told", bytes.size(),
                              fabric::path_address_max);
    return end;
  }
  take_keys(lane);
  end.address = *address;
  end.table = lane.tables.own;
  if (lane.control.box) {
    end.control_address = reinterpret_cast<uint64_t>(lane.control.box->incoming.data());
    end.control_key = lane.control.written_key;
  }
  return end;
}

bool PathSet::addresses_ready() const {
  return std::all_of(lanes().begin(), lanes().end(), [](const Lane& lane) {
    return lane.early_failure || lane.owned.path->address_ready();
  });
}

std::vector<PathEnd> PathSet::ends() {
  std::vector<PathEnd> all;
  for (Lane& lane : lanes()) {
    all.push_back(end_of(lane));
  }
  return all;
}

void PathSet::fail_all(const Error& why) {
  for (Lane& lane : lanes()) {
    lane.set_usable(false);
    if (lane.owned.path) {
      try {
        lane.path().fail(why);
      } catch (const std::bad_alloc&) {
        continue;  // it has ended, and for telling so there was no memory
      }
    }
  }
  count_missing();
}

void PathSet::await_stops() {
  for (Lane& lane : lanes()) {
    if (lane.owned.path && lane.path().state() == fabric::PathState::error) {
      lane.path().await_stop();
    }
  }
}

void PathSet::flush_all_acks() {
  for (Lane& lane : lanes()) {
    if (lane.usable && !lane.traits.acknowledged_by_nic) {
      lane.path().flush_acks();
    }
  }
}

bool PathSet::post_credit(Lane& lane) {
  if (lane.path().post_receive() != Errc::ok) {
    return false;
  }
  ++lane.credits_open;
  return true;
}

void PathSet::post_owed_credits(Lane& lane) {
  for (; lane.credits_owed != 0; --lane.credits_owed) {
    static_cast<void>(post_credit(lane));  // a path that is gone takes none, and needs none
  }
}

void PathSet::find_places() { places_ = look_for_places(); }

std::vector<fabric::Place> PathSet::look_for_places() const {
  std::vector<fabric::Place> places = state_.provider.places(state_.attachment);
  if (without_rails_) {
    const auto others = std::span(state_.devices.devices).first(state_.devices.count).subspan(1);
    std::erase_if(places, [&](const fabric::Place& place) {
      return place.at.kind == state_.attachment.kind &&
             std::ranges::any_of(others, [&](size_t device) { return place.is_of(device); });
    });
  }
  places.resize(std::min(places.size(), ha::rails_max));
  return places;
}

std::vector<size_t> PathSet::renew_places() {
  const auto of_same_nic = [](const fabric::Place& one, const fabric::Place& other) {
    return one.at.kind == other.at.kind && one.at.device == other.at.device &&
           one.at.way == other.at.way && one.address.family == other.address.family &&
           (one.number == other.number || one.at.incarnation != other.at.incarnation);
  };
  const auto same = [&](const fabric::Place& one, const fabric::Place& other) {
    return of_same_nic(one, other) && one.number == other.number && one.address == other.address;
  };
  const auto may_become = [&](size_t at, const fabric::Place& other) {
    return of_same_nic(places_[at], other) && (places_[at].number == other.number || !is_own(at));
  };
  // What is as it was keeps its place; an address that is gone makes room for a new one of its NIC.
  std::vector<fabric::Place> now = look_for_places();
  std::vector<bool> kept(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    kept[i] = std::erase_if(now, [&](const auto& one) { return same(one, places_[i]); }) != 0;
  }
  std::vector<size_t> changed;
  for (const fabric::Place& place : now) {
    size_t at = 0;
    while (at < places_.size() && (kept[at] || !may_become(at, place))) {
      ++at;
    }
    if (at == places_.size() && at == ha::rails_max && place.at.incarnation != 0) {
      // Rather than one of another fabric, the last of which comes last.
      const auto other = std::find_if(places_.rbegin(), places_.rend(), [&](const auto& one) {
        return one.at.kind != state_.attachment.kind;
      });
      at = other == places_.rend() ? at : static_cast<size_t>(places_.rend() - other) - 1;
    }
    if (at == ha::rails_max) {
      continue;  // for more there is no room
    }
    places_.resize(std::max(places_.size(), at + 1));
    kept.resize(places_.size());
    places_[at] = place;
    kept[at] = true;
    changed.push_back(at);
  }
  return changed;
}

std::optional<size_t> PathSet::place_of_rail(size_t rail) const {
  const auto primary = IpAddress::from_sockaddr(as_sockaddr(local_));
  for (size_t i = 0; i < places_.size() && rail < state_.devices.count; ++i) {
    const fabric::Place& place = places_[i];
    const bool its =
        state_.devices.are_ways ? place.at.way == rail : place.is_of(state_.devices.devices[rail]);
    if (place.at.kind == state_.attachment.kind && its &&
        (place.address.family == 0 || !primary || place.address.family == primary->family)) {
      return i;
    }
  }
  return std::nullopt;
}

bool PathSet::is_own(size_t place) const {
  bool own = is_primary(place);
  for (size_t rail = 1; rail <= state_.rails.rails && !own; ++rail) {
    own = place_of_rail(rail) == place;
  }
  return own;
}

void PathSet::leave_rails_out() {
  without_rails_ = true;
  places_ = look_for_places();
}

std::vector<ha::Rail> PathSet::rails() const {
  const auto first = std::find_if(places_.begin(), places_.end(),
                                  [&](const auto& place) { return place.number == local_number_; });
  std::vector<ha::Rail> rails;
  for (const fabric::Place& place : places_) {
    ha::Rail rail;
    rail.kind = static_cast<uint8_t>(place.at.kind);
    rail.number = place.number;
    rail.primary = place.number == local_number_;
    rail.distance = rail.primary ? uint8_t{0}
                                 : ha::pci_distance(first == places_.end() ? "" : first->pci_path,
                                                    place.pci_path);
    rail.family = place.address.family;
    rail.prefix_len = place.address.prefix_len;
    rail.address = place.address.bytes;
    rails.push_back(rail);
  }
  return rails;
}

bool PathSet::backs_with_others() const {
  const auto own = std::count_if(places_.begin(), places_.end(), [&](const fabric::Place& place) {
    return place.at.kind == state_.attachment.kind;
  });
  return own > 1 && static_cast<size_t>(own) != places_.size();
}

std::string PathSet::interface_of(const Lane& lane) const {
  return state_.provider.nic_of(lane.at, as_sockaddr(lane.local));
}

std::string PathSet::interface_of(const fabric::Place& place) const {
  sockaddr_storage address{};
  const bool known = place.address.to_sockaddr(0, &address);
  return state_.provider.nic_of(place.at, known ? as_sockaddr(address) : nullptr);
}

fabric::FailureDomains PathSet::domains_of(const Lane& lane) const {
  fabric::FailureDomains domains;
  if (lane.owned.path) {
    lane.owned.path->failure_domains(domains);
  }
  // Known of a lane without a path too, which waits for its NIC.
  const fabric::FailureDomain nic{fabric::FailureDomain::Kind::local_nic, interface_of(lane)};
  if (!contains(domains, nic)) {
    domains.push_back(nic);
  }
  return domains;
}

bool PathSet::is_in(const Lane& lane, const fabric::FailureDomain& domain) const {
  return contains(domains_of(lane), domain);
}

std::string PathSet::text() const {
  const auto is_usable = [](const Lane& lane) { return lane.usable; };
  const auto up = std::count_if(lanes().begin(), lanes().end(), is_usable);
  const auto first = std::find_if(lanes().begin(), lanes().end(), is_usable);
  return first == lanes().end()
             ? "no path"
             : first->owned.path->describe() + (up > 1 ? fmt::format(" and {} more", up - 1) : "");
}

}  // namespace nccl_ha
