#include "tests/rig/nic/device.h"

#include <endian.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace nccl_ha::emulated {
namespace {

constexpr uint64_t guid_base = 0xfa4e'0000'0000'0000;
constexpr uint32_t lids_of_host = devices_max * ports_max;
constexpr uint32_t foreign_host = 254;  // in GIDs of other network namespaces
constexpr uint64_t link_local = 0xfe80'0000'0000'0000;
constexpr uint16_t first_router = 0xB000;  // no host's LID

/// The LID of the router that leads to the subnet of these devices.
uint16_t router_of(unsigned device) { return static_cast<uint16_t>(first_router + device); }

uint64_t prefix_of(unsigned device) {
  return 0xfec0'0000'0000'0000 | uint64_t{router_of(device)} << 16U | (device + 1U);
}

uint16_t lid_of(const Place& place) {
  return static_cast<uint16_t>(1U + place.host * lids_of_host + place.device * ports_max +
                               place.port - 1U);
}

/// RoCE: an IPv4 address in IPv6's words, a network for each device and port.
void put_address(const Place& place, ibv_gid* gid) {
  *gid = {};
  gid->raw[10] = gid->raw[11] = 0xff;
  gid->raw[12] = 10;
  gid->raw[13] = static_cast<uint8_t>(place.device * 16 + place.port);
  gid->raw[15] = static_cast<uint8_t>(place.host + 1);
}

void put_guid(uint64_t prefix, uint64_t guid, ibv_gid* gid) {
  gid->global.subnet_prefix = htobe64(prefix);
  gid->global.interface_id = htobe64(guid);
}

}  // namespace

uint32_t ece_of(uint64_t generation) {
  // Each generation knows what the one before it does, and more (selective repeat, congestion
  // control of its own).
  return generation < 5 ? 0 : (4U << (generation - 5)) - 1;
}

std::optional<Place> place_of(const ibv_ah_attr& route) {
  const ibv_gid& gid = route.grh.dgid;
  Place place;
  if (route.is_global == 0) {
    if (route.dlid == 0) {
      return std::nullopt;
    }
    const uint32_t rest = (route.dlid - 1U) % lids_of_host;
    place.host = static_cast<uint8_t>((route.dlid - 1U) / lids_of_host);
    place.device = static_cast<uint8_t>(rest / ports_max);
    place.port = static_cast<uint8_t>(rest % ports_max + 1);
    return place;
  }
  const uint64_t guid = be64toh(gid.global.interface_id);
  place.host = static_cast<uint8_t>(guid >> 16U);
  place.device = static_cast<uint8_t>(guid >> 8U);
  place.port = static_cast<uint8_t>(guid);
  const uint64_t prefix = be64toh(gid.global.subnet_prefix);
  if (prefix == link_local || prefix == prefix_of(place.device)) {
    return (guid & ~uint64_t{0xFFFFFF}) == guid_base ? std::optional(place) : std::nullopt;
  }
  place.host = static_cast<uint8_t>(gid.raw[15] - 1);
  place.device = gid.raw[13] / 16;
  place.port = gid.raw[13] % 16;
  ibv_gid expected;
  put_address(place, &expected);
  const bool known = std::memcmp(expected.raw, gid.raw, sizeof gid.raw) == 0;
  return known && place.host < hosts_max && place.device < devices_max ? std::optional(place)
                                                                       : std::nullopt;
}

Device::Device(const Settings& settings, Control& control, unsigned host, unsigned index)
    : settings_(settings),
      state_(control.device(host, index)),
      host_(host),
      index_(index),
      firmware_(settings, state_),
      memory_(settings, state_.counters, settings.seed + 31 * index) {
  static_cast<ibv_device&>(*this) = {};
  // Named as a ConnectX's: users look at the name's begin.
  std::snprintf(name, sizeof name, "mlx5_%u", index);
  std::snprintf(dev_name, sizeof dev_name, "uverbs%u", index);
  std::snprintf(dev_path, sizeof dev_path, "/sys/class/infiniband_verbs/uverbs%u", index);
  std::snprintf(ibdev_path, sizeof ibdev_path, "/sys/class/infiniband/mlx5_%u", index);
  node_type = settings.iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
  transport_type = settings.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
}

Place Device::place(unsigned port) const {
  return {static_cast<uint8_t>(host_), static_cast<uint8_t>(index_), static_cast<uint8_t>(port)};
}

uint64_t Device::guid() const { return guid_base + (uint64_t{host_} << 16U) + (index_ << 8U); }

int Device::refuse(const ibv_ah_attr& route) const {
  if (settings_.infiniband && settings_.grh && route.is_global == 0) {
    return EINVAL;  // Linux, rdma_check_ah_attr()
  }
  const auto to = place_of(route);
  const bool beyond = settings_.subnets && to && to->device != index_;
  const bool led_there = route.is_global != 0 && to && route.dlid == router_of(to->device);
  return !to || (beyond && !led_there) ? EHOSTUNREACH : 0;
}

bool Device::reset_for(Duration time) const {
  return mode() == Mode::reset &&
         now_ns() >= state_.since.load() + static_cast<uint64_t>(time.count());
}

bool Device::registered(uint32_t generation) const {
  return state_.generation.load() == generation &&
         !reset_for(settings_.removal + settings_.removal_rest);
}

bool Device::moves_data(uint32_t generation) const {
  if (state_.generation.load() != generation) {
    return false;
  }
  const bool lingers = settings_.removal_rest.count() != 0 && mode() == Mode::reset;
  return mode() == Mode::running || mode() == Mode::removing ||
         (lingers && registered(generation)) ||
         (mode() == Mode::internal &&
          now_ns() < state_.since + static_cast<uint64_t>(settings_.internal_writes.count()));
}

void Device::describe(ibv_device_attr* attributes) const {
  *attributes = {};
  std::strcpy(attributes->fw_ver, "28.39.1002");
  attributes->vendor_id = 0x2c9;
  attributes->vendor_part_id = 4129;
  attributes->node_guid = settings_.vf ? 0 : htobe64(guid());
  attributes->sys_image_guid = htobe64(guid());
  attributes->max_mr_size = UINT64_MAX;
  attributes->page_size_cap = 0xfffff000;
  attributes->max_qp = static_cast<int>(settings_.max_qp);
  attributes->max_qp_wr = static_cast<int>(settings_.max_qp_wr);
  attributes->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN;
  attributes->max_sge = pieces_max;
  attributes->max_sge_rd = pieces_max;
  attributes->max_cq = static_cast<int>(settings_.max_cq);
  attributes->max_cqe = static_cast<int>(settings_.max_cqe);
  attributes->max_mr = static_cast<int>(settings_.max_mr);
  attributes->max_pd = 1 << 16;
  attributes->max_qp_rd_atom = 16;
  attributes->max_qp_init_rd_atom = 16;
  attributes->max_ah = 1 << 16;
  attributes->max_pkeys = pkeys;
  attributes->phys_port_cnt = static_cast<uint8_t>(settings_.ports);
}

void Device::describe(unsigned port, ibv_port_attr* attributes) const {
  *attributes = {};
  const bool down = state_.ports[port - 1].down.load() != 0;
  uint8_t mtu = IBV_MTU_256;
  for (uint64_t bytes = settings_.mtu; bytes >= 512; bytes /= 2) {
    ++mtu;
  }
  attributes->state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attributes->phys_state = down ? 2 : 5;
  attributes->max_mtu = IBV_MTU_4096;
  attributes->active_mtu = static_cast<ibv_mtu>(mtu);
  attributes->gid_tbl_len = static_cast<int>(std::max(gid_count(), 8U));
  attributes->max_msg_sz = 1U << 30;
  attributes->pkey_tbl_len = pkeys;
  attributes->active_width = 2;  // four lanes
  // The kernel tells of faster lanes as of NDR, for which the field has no bit.
  attributes->active_speed = settings_.infiniband || settings_.xdr ? 128 : 32;
  attributes->lid = settings_.infiniband ? lid_of(place(port)) : uint16_t{0};
  attributes->sm_lid = settings_.infiniband ? 1 : 0;
  attributes->flags = settings_.grh ? IBV_QPF_GRH_REQUIRED : 0;
  attributes->link_layer = settings_.no_link_layer ? IBV_LINK_LAYER_UNSPECIFIED
                           : settings_.infiniband  ? IBV_LINK_LAYER_INFINIBAND
                                                   : IBV_LINK_LAYER_ETHERNET;
}

uint32_t Device::gid_count() const {
  return settings_.infiniband ? 1 : static_cast<uint32_t>(settings_.foreign_gids) + 1;
}

bool Device::gid(unsigned port, uint32_t index, ibv_gid_entry* entry) const {
  if (index >= gid_count() || port == 0 || port > settings_.ports) {
    return false;
  }
  *entry = {};
  entry->gid_index = index;
  entry->port_num = port;
  entry->gid_type = settings_.infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
  if (settings_.infiniband) {
    put_guid(settings_.subnets ? prefix_of(index_) : link_local, guid() + port, &entry->gid);
    return true;
  }
  Place where = place(port);
  if (index < settings_.foreign_gids) {
    where.host =
        foreign_host;  // a pod's own address, of an interface that is not in this namespace
    entry->ndev_ifindex = 0x7000 + index;
  } else {
    entry->ndev_ifindex = settings_.unknown_netdev ? 0 : if_nametoindex("lo");
  }
  put_address(where, &entry->gid);
  return true;
}

/// The newest first, as the kernel destroys objects, evenly; then queue pairs, all at once.
void Device::take_memory(uint64_t now) {
  const uint64_t since = state_.since.load();
  const uint64_t took = now > since ? now - since : 0;
  const uint64_t takes = state_.takes.load();
  doomed_ = std::max(doomed_, memory_.count());
  const bool fails = settings_.removal_rest.count() != 0;  // the driver, in the first pass
  const size_t gone = fails ? 0 : took >= takes ? doomed_ : (doomed_ + 1) * took / takes;
  memory_.revoke(doomed_ - std::min(gone, doomed_));
  auto removing = static_cast<uint32_t>(Mode::removing);
  if (took >= takes &&
      state_.mode.compare_exchange_strong(removing, static_cast<uint32_t>(Mode::reset))) {
    state_.since = now;
  }
}

uint64_t Device::next_due(uint64_t now) const {
  constexpr uint64_t step = 100'000;
  return mode() == Mode::removing ? now + step : UINT64_MAX;
}

/// All that this process had there is destroyed.
void Device::take_away(Context& context) {
  if (std::exchange(context.taken_away, true)) {
    return;
  }
  if (settings_.old_kernel) {
    context.events.end();
    return;
  }
  for (auto channel = channels_.rbegin(); channel != channels_.rend(); ++channel) {
    if ((*channel)->context == &context) {
      (*channel)->events.end();
    }
  }
  ibv_async_event last{};
  last.event_type = IBV_EVENT_DEVICE_FATAL;
  context.events.push(last);
}

void Device::let_go(uint64_t now) {
  const auto after = [&](Duration time) {
    return now >= state_.since.load() + static_cast<uint64_t>(time.count());
  };
  auto internal = static_cast<uint32_t>(Mode::internal);
  if (mode() == Mode::internal && after(settings_.internal_reset) &&
      state_.mode.compare_exchange_strong(internal, static_cast<uint32_t>(Mode::reset))) {
    state_.since = now;
  }
  if (mode() == Mode::removing) {
    take_memory(now);
  } else {
    doomed_ = 0;
  }
  const bool over = reset_for(settings_.removal);
  for (Context* context : contexts_) {
    if (over || context->generation != state_.generation.load()) {
      take_away(*context);
    }
  }
}

void Device::raise(const ibv_async_event& event, uint32_t generation) {
  for (Context* context : contexts_) {
    if (context->generation == generation) {
      context->events.push(event);
    }
  }
}

}  // namespace nccl_ha::emulated
