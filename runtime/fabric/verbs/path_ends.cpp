#include "runtime/fabric/verbs/path_ends.h"

#include <fmt/format.h>

#include <bit>
#include <cerrno>

#include "runtime/fabric/verbs/route.h"

namespace nccl_ha::fabric::verbs {

Result<void> PathEnds::look_up(const Device& device, uint8_t port, const GidPreference& want) {
  auto info = device.query(port);
  if (!info) {
    return info.error();
  }
  info_ = std::move(*info);
  if (!info_.active) {
    return fail(Errc::system,
                fmt::format("RDMA device {}: port {} is {}; check cable and switch", info_.device,
                            port, info_.state),
                ENETDOWN);
  }
  gid_ = select_gid(info_.gids, want);
  if (!gid_ && info_.needs_gid()) {
    return fail(
        Errc::system,
        fmt::format("RDMA device {}: no GID fits the settings; is {} up and has an address?",
                    info_.device, info_.netdev.empty() ? "its interface" : info_.netdev),
        EADDRNOTAVAIL);
  }
  local_.link = info_.link;
  local_.lid = info_.lid;
  local_.mtu = static_cast<uint8_t>(std::countr_zero(info_.mtu) - 7);
  local_.gid = gid_ ? gid_->bytes : Gid{};
  return {};
}

void PathEnds::set_local(uint32_t queue_pair, uint32_t packet_sequence, Scratch& scratch) {
  local_.queue_pair = queue_pair;
  local_.packet_sequence = packet_sequence & wire_number_mask;
  local_.scratch = reinterpret_cast<uint64_t>(scratch.target());
  local_.scratch_key = scratch.remote_key();
  encode(local_, local_bytes_);
}

void PathEnds::set_local_ece(const std::optional<ibv_ece>& ece) {
  const ibv_ece said = ece.value_or(ibv_ece{});
  local_.has_ece = ece.has_value();
  local_.ece_vendor = said.vendor_id;
  local_.ece_options = said.options;
  local_.ece_compatibility = said.comp_mask;
  encode(local_, local_bytes_);
}

void PathEnds::take_local(const PathEnds& made) {
  info_ = made.info_;
  gid_ = made.gid_;
  local_ = made.local_;
  local_bytes_ = made.local_bytes_;
}

Result<void> PathEnds::set_peer(const WireAddress& peer) {
  if (peer.link != local_.link) {
    return fail(Errc::invalid_argument,
                fmt::format("this side uses {} ({}), the peer {}: choose devices of one kind with "
                            "HA_NCCL_IB_HCA",
                            to_text(local_.link), info_.device, to_text(peer.link)));
  }
  peer_ = peer;
  return {};
}

QueuePair::Connection PathEnds::to_peer(uint8_t traffic_class, uint8_t service_level) const {
  QueuePair::Connection way;
  way.peer = peer_.queue_pair;
  way.peer_sequence = peer_.packet_sequence;
  way.own_sequence = local_.packet_sequence;
  way.mtu = static_cast<ibv_mtu>(mtu());
  way.route = route_between(info_, gid_, {peer_.lid, peer_.gid}, {traffic_class, service_level});
  return way;
}

QueuePair::Connection PathEnds::to_itself(uint32_t queue_pair) const {
  QueuePair::Connection way;
  way.peer = queue_pair;
  way.peer_sequence = local_.packet_sequence;
  way.own_sequence = local_.packet_sequence;
  way.mtu = static_cast<ibv_mtu>(local_.mtu);
  way.route = route_between(info_, gid_, {info_.lid, local_.gid});
  return way;
}

std::optional<std::string> PathEnds::peer_nic() const {
  if (peer_.queue_pair == 0) {
    return std::nullopt;
  }
  if (ethernet()) {
    return gid_address(peer_.gid).text();
  }
  uint64_t subnet = 0;  // each numbers its ports by itself
  for (size_t i = 0; i < sizeof subnet; ++i) {
    subnet = subnet << 8U | peer_.gid[i];
  }
  return fmt::format("LID {} of subnet {:016x}", peer_.lid, subnet);
}

Error PathEnds::no_way(int error) const {
  return fail(
      Errc::remote,
      fmt::format("RDMA device {}: no way from {} to the peer's {} (LID {}): is the peer's "
                  "address on a network of this device?",
                  info_.device, gid_ ? gid_text(gid_->bytes) : "-", gid_text(peer_.gid), peer_.lid),
      error);
}

std::string PathEnds::describe() const {
  return fmt::format("{} {}:{} {} -> {} qp {} -> {} mtu {}", to_text(local_.link), info_.device,
                     info_.port, gid_ ? gid_text(gid_->bytes) : fmt::format("LID {}", local_.lid),
                     peer_.queue_pair == 0 ? "?"
                     : ethernet()          ? gid_text(peer_.gid)
                                           : fmt::format("LID {}", peer_.lid),
                     local_.queue_pair, peer_.queue_pair, mtu_bytes());
}

}  // namespace nccl_ha::fabric::verbs
