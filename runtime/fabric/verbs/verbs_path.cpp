// Making, connecting and breaking an RC queue pair.
#include "runtime/fabric/verbs/verbs_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/fabric/byte_order.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr uint16_t wire_magic = 0x5652;  // version 1
constexpr uint32_t number_mask = 0xFFFFFF;
/// Between looks at whether the peer's address was found.
constexpr Duration resolution_interval = std::chrono::milliseconds(1);
constexpr uint8_t rnr_timer = 12;          // 0.64 ms (IBTA table 46)
constexpr uint8_t rnr_retry_for_ever = 7;  // a peer that is slow to post is not dead

}  // namespace

//   0 u16 magic   2 u8 link layer   3 u8 MTU code   4 u32 queue pair   8 u32 first packet number
//  12 u16 LID   14 u16 flags (1: ECE)   16 GID   32 u32 ECE vendor   36 options   40 compatibility
//  44 u32 zero
void encode(const WireAddress& address, std::span<std::byte, wire_address_bytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  put<uint16_t>(out.data(), 0, wire_magic);
  put<uint8_t>(out.data(), 2, static_cast<uint8_t>(address.link));
  put<uint8_t>(out.data(), 3, address.mtu);
  put<uint32_t>(out.data(), 4, address.queue_pair);
  put<uint32_t>(out.data(), 8, address.packet_sequence);
  put<uint16_t>(out.data(), 12, address.lid);
  put<uint16_t>(out.data(), 14, address.has_ece ? 1 : 0);
  std::memcpy(out.data() + 16, address.gid.data(), address.gid.size());
  put<uint32_t>(out.data(), 32, address.ece_vendor);
  put<uint32_t>(out.data(), 36, address.ece_options);
  put<uint32_t>(out.data(), 40, address.ece_compatibility);
}

std::optional<WireAddress> decode_address(std::span<const std::byte> bytes) {
  if (bytes.size() != wire_address_bytes || get<uint16_t>(bytes.data(), 0) != wire_magic ||
      get<uint32_t>(bytes.data(), 44) != 0 || get<uint16_t>(bytes.data(), 14) > 1) {
    return std::nullopt;
  }
  WireAddress address;
  const auto link = get<uint8_t>(bytes.data(), 2);
  address.mtu = get<uint8_t>(bytes.data(), 3);
  address.queue_pair = get<uint32_t>(bytes.data(), 4);
  address.packet_sequence = get<uint32_t>(bytes.data(), 8);
  if (link < 1 || link > 2 || address.mtu < IBV_MTU_256 || address.mtu > IBV_MTU_4096 ||
      address.queue_pair > number_mask || address.packet_sequence > number_mask) {
    return std::nullopt;
  }
  address.link = static_cast<LinkLayer>(link);
  address.lid = get<uint16_t>(bytes.data(), 12);
  address.has_ece = get<uint16_t>(bytes.data(), 14) == 1;
  std::memcpy(address.gid.data(), bytes.data() + 16, address.gid.size());
  address.ece_vendor = get<uint32_t>(bytes.data(), 32);
  address.ece_options = get<uint32_t>(bytes.data(), 36);
  address.ece_compatibility = get<uint32_t>(bytes.data(), 40);
  return address;
}

VerbsPath::VerbsPath(Port& port, const PathOptions& options, PathOwner* owner, uint32_t slot,
                     uint16_t generation, size_t queue)
    : port_(port),
      library_(port.library_),
      owner_(owner),
      options_(options),
      slot_(slot),
      generation_(generation),
      queue_(queue) {
  timer_.bind([](void* self) { static_cast<VerbsPath*>(self)->on_timer(); }, this);
  const uint32_t sends = std::bit_ceil(options.writes_max + 8);
  const uint32_t receives = std::bit_ceil(options.receives_max + 8);
  sends_.resize(sends);
  send_mask_ = sends - 1;
  receives_.resize(receives);
  receive_mask_ = receives - 1;
  pending_.resize(sends + 1);
  pending_sges_.resize(sends);
  for (size_t i = 0; i < sends; ++i) {
    pending_[i].sg_list = pending_sges_[i].data();
  }
  if (options.flushes) {
    flushes_.resize(std::bit_ceil(options.receives_max));
  }
}

VerbsPath::~VerbsPath() {
  port_.env_.timers->cancel(timer_);
  port_.remove(*this);
  if (qp_ == nullptr) {
    return;
  }
  // One that still has work fills the completion queue until it is gone, so that is waited for; a
  // device that failed may take long.
  if (fence_ == Fence::closed || port_.device().fatal.load(std::memory_order_acquire)) {
    static_cast<void>(port_.device().destroyer().destroy({qp_, flush_qp_}));
    return;
  }
  for (ibv_qp* qp : {qp_, flush_qp_}) {
    if (qp != nullptr && library_.queue_pair.destroy(qp) != 0) {
      NHA_LOG_DEBUG("RDMA device {}: cannot destroy a queue pair", port_.device().name());
    }
  }
}

Result<void> VerbsPath::open(const GidPreference& want) {
  const Device& device = port_.device();
  auto info = device.query(port_.number());
  if (!info) {
    return info.error();
  }
  info_ = std::move(*info);
  traits_ = port_.options_.traits(info_.link == LinkLayer::infiniband,
                                  device.peer_memory() || device.dmabuf(), info_.speed_mbps);
  if (!info_.active) {
    return nccl_ha::fail(Errc::system,
                         fmt::format("RDMA device {}: port {} is {}; check cable and switch",
                                     info_.device, port_.number(), info_.state),
                         ENETDOWN);
  }
  // The table is read anew for every path: after a flap, an address may sit at another index.
  gid_ = select_gid(info_.gids, want);
  if (!gid_ && info_.link == LinkLayer::ethernet) {
    return nccl_ha::fail(
        Errc::system,
        fmt::format("RDMA device {}: no GID fits the settings; is {} up and has an address?",
                    info_.device, info_.netdev.empty() ? "its interface" : info_.netdev),
        EADDRNOTAVAIL);
  }
  ibv_qp_init_attr attributes{};
  ibv_cq* cq = port_.queues_[queue_].cq;
  attributes.send_cq = cq;
  attributes.recv_cq = cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = options_.writes_max + 4;
  attributes.cap.max_recv_wr = options_.receives_max + 4;
  attributes.cap.max_send_sge = gathers_max;
  attributes.cap.max_recv_sge = 1;
  // A clear-to-send of one buffer; more is asked for where the device gives it.
  for (const uint32_t bytes : {256U, 128U, 64U, 0U}) {
    attributes.cap.max_inline_data = bytes;
    qp_ = library_.queue_pair.create(device.pd(), &attributes);
    if (qp_ != nullptr || errno == ENOMEM) {
      break;
    }
  }
  if (qp_ == nullptr) {
    const int error = errno;
    return nccl_ha::fail(Errc::system,
                         fmt::format("RDMA device {}: cannot create a queue pair for {} sends and "
                                     "{} receives{}",
                                     info_.device, attributes.cap.max_send_wr,
                                     attributes.cap.max_recv_wr, memlock_hint(error)),
                         error);
  }
  inline_max_ = attributes.cap.max_inline_data;
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = port_.options_.pkey_index;
  init.port_num = port_.number();
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (const int error = library_.queue_pair.modify(
          qp_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      error != 0) {
    return nccl_ha::fail(
        Errc::system,
        fmt::format("RDMA device {}: cannot initialise a queue pair on port {} (partition key "
                    "index {})",
                    info_.device, port_.number(), port_.options_.pkey_index),
        error);
  }
  ibv_port_attr port_attributes{};
  static_cast<void>(library_.device.query_port(device.context(), port_.number(), &port_attributes));
  write_max_ = port_attributes.max_msg_sz;
  local_.link = info_.link;
  local_.queue_pair = qp_->qp_num;
  local_.packet_sequence = static_cast<uint32_t>(port_.env_.random->next()) & number_mask;
  local_.lid = info_.lid;
  local_.mtu = static_cast<uint8_t>(std::countr_zero(info_.mtu) - 7);
  local_.gid = gid_ ? gid_->bytes : Gid{};
  if (port_.options_.ece && library_.queue_pair.query_ece != nullptr) {
    query_ece();
  }
  encode(local_, local_bytes_);
  return post_probe_receives();
}

// The peer's two probes meet the first two receives.
Result<void> VerbsPath::post_probe_receives() {
  for (int i = 0; i < 2; ++i) {
    ReceivePost probe;
    probe.address = port_.scratch_.data() + port_.scratch_.size() / 2;
    probe.length = static_cast<uint32_t>(port_.scratch_.size() / 2);
    probe.key = port_.scratch_region_.local_key();
    if (post_receive(probe) != Errc::ok) {
      return nccl_ha::fail(Errc::system,
                           fmt::format("RDMA device {}: cannot post a receive", info_.device));
    }
    receives_[(receive_tail_ - 1) & receive_mask_].internal = true;
  }
  return {};
}

Result<void> VerbsPath::connect(std::span<const std::byte> peer_address) {
  const auto peer = decode_address(peer_address);
  if (!peer) {
    return nccl_ha::fail(
        Errc::invalid_argument,
        "the peer's RDMA address is malformed; do both hosts run the same nccl-ha?");
  }
  if (state_ != PathState::idle) {
    return nccl_ha::fail(Errc::invalid_usage, "connect: the path was connected before");
  }
  if (peer->link != local_.link) {
    return nccl_ha::fail(
        Errc::invalid_argument,
        fmt::format("this side uses {} ({}), the peer {}: choose devices of one kind with "
                    "HA_NCCL_IB_HCA",
                    to_text(local_.link), info_.device, to_text(peer->link)));
  }
  peer_ = *peer;
  connect_deadline_ = port_.env_.clock->now() + connect_limit();
  if (options_.connect_limit > Duration(0)) {
    // Others have work to do meanwhile, and the peer may well be out of reach.
    state_ = PathState::connecting;
    resolution_ = port_.device().resolver().ask(route_to(peer_));
    look_at_resolution();
    return {};
  }
  return go_ready();
}

Result<void> VerbsPath::go_ready() {
  if (auto moved = to_ready(peer_); !moved) {
    return moved.error();
  }
  if (options_.flushes) {
    if (auto flush = open_flush(); !flush) {
      return flush.error();
    }
  }
  state_ = PathState::connecting;
  port_.env_.timers->arm(timer_, connect_deadline_);
  if (options_.active) {
    post_probes();
  }
  return {};
}

void VerbsPath::look_at_resolution() {
  const int result = resolution_->result.load(std::memory_order_acquire);
  const Instant now = port_.env_.clock->now();
  if (result == Resolution::open && now < connect_deadline_) {
    port_.env_.timers->arm(timer_, now + resolution_interval);
    return;
  }
  resolution_.reset();
  auto ready = result == 0 ? go_ready() : Result<void>(no_way(result > 0 ? result : ETIMEDOUT));
  if (!ready) {
    break_path(CompletionStatus::retry_exceeded, ready.error());
  }
}

Error VerbsPath::no_way(int error) const {
  return nccl_ha::fail(
      Errc::remote,
      fmt::format("RDMA device {}: no way from {} to the peer's {} (LID {}): is the peer's "
                  "address on a network of this device?",
                  info_.device, gid_ ? gid_text(gid_->bytes) : "-", gid_text(peer_.gid), peer_.lid),
      error);
}

Result<void> VerbsPath::move_to_rts(ibv_qp* qp, const ibv_ah_attr& route, uint32_t peer_qp,
                                    uint32_t peer_psn, uint32_t own_psn, ibv_mtu mtu) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = mtu;
  receive.dest_qp_num = peer_qp;
  receive.rq_psn = peer_psn;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = rnr_timer;
  receive.ah_attr = route;
  if (const int error = library_.queue_pair.modify(
          qp, &receive,
          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
      error != 0) {
    return no_way(error);
  }
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = port_.options_.timeout;
  send.retry_cnt = port_.options_.retry_count;
  send.rnr_retry = rnr_retry_for_ever;
  send.sq_psn = own_psn;
  send.max_rd_atomic = 1;
  if (const int error = library_.queue_pair.modify(qp, &send,
                                                   IBV_QP_STATE | IBV_QP_TIMEOUT |
                                                       IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
      error != 0) {
    return nccl_ha::fail(
        Errc::system,
        fmt::format("RDMA device {}: cannot make a queue pair ready to send", info_.device), error);
  }
  return {};
}

void VerbsPath::query_ece() {
  ibv_ece ece{};
  local_.has_ece = library_.queue_pair.query_ece(qp_, &ece) == 0;
  local_.ece_vendor = ece.vendor_id;
  local_.ece_options = ece.options;
  local_.ece_compatibility = ece.comp_mask;
}

Result<void> VerbsPath::to_ready(const WireAddress& peer) {
  if (peer.has_ece && local_.has_ece && library_.queue_pair.set_ece != nullptr) {
    ibv_ece ece{};
    ece.vendor_id = peer.ece_vendor;
    ece.options = peer.ece_options;
    ece.comp_mask = peer.ece_compatibility;
    static_cast<void>(
        library_.queue_pair.set_ece(qp_, &ece));  // refused: the plain establishment is used
  }
  const ibv_ah_attr route = route_to(peer);
  const auto mtu = static_cast<ibv_mtu>(std::min(local_.mtu, peer.mtu));
  auto moved =
      move_to_rts(qp_, route, peer.queue_pair, peer.packet_sequence, local_.packet_sequence, mtu);
  if (moved && local_.has_ece) {
    query_ece();  // what both sides can do; a peer that connects later takes it from here
    encode(local_, local_bytes_);
  }
  return moved;
}

ibv_ah_attr VerbsPath::route_to(const WireAddress& peer) const {
  ibv_ah_attr route{};
  route.port_num = port_.number();
  route.sl = options_.service_level;
  // InfiniBand needs a global route only where the subnet prefixes differ.
  const bool global =
      local_.link == LinkLayer::ethernet ||
      (gid_ && !std::equal(peer.gid.begin(), peer.gid.begin() + 8, gid_->bytes.begin()));
  if (global) {
    route.is_global = 1;
    std::memcpy(route.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    route.grh.sgid_index = gid_ ? static_cast<uint8_t>(gid_->index) : 0;
    route.grh.hop_limit = hop_limit;
    route.grh.traffic_class = options_.traffic_class;
  }
  if (local_.link == LinkLayer::infiniband) {
    route.dlid = peer.lid;
  }
  return route;
}

Result<void> VerbsPath::open_flush() {
  ibv_qp_init_attr attributes{};
  ibv_cq* cq = port_.queues_[queue_].cq;
  attributes.send_cq = cq;
  attributes.recv_cq = cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = options_.receives_max;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  flush_qp_ = library_.queue_pair.create(port_.device().pd(), &attributes);
  if (flush_qp_ == nullptr) {
    const int error = errno;
    return nccl_ha::fail(
        Errc::system,
        fmt::format("RDMA device {}: cannot create the queue pair for GPU flushes{}", info_.device,
                    memlock_hint(error)),
        error);
  }
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = port_.options_.pkey_index;
  init.port_num = port_.number();
  init.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  if (const int error = library_.queue_pair.modify(
          flush_qp_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      error != 0) {
    return nccl_ha::fail(
        Errc::system,
        fmt::format("RDMA device {}: cannot initialise the queue pair for GPU flushes",
                    info_.device),
        error);
  }
  // To itself: the read leaves over PCIe behind the writes that arrived before it.
  ibv_ah_attr route{};
  route.port_num = port_.number();
  if (local_.link == LinkLayer::ethernet) {
    route.is_global = 1;
    std::memcpy(route.grh.dgid.raw, gid_->bytes.data(), gid_->bytes.size());
    route.grh.sgid_index = static_cast<uint8_t>(gid_->index);
    route.grh.hop_limit = hop_limit;
  } else {
    route.dlid = info_.lid;
  }
  return move_to_rts(flush_qp_, route, flush_qp_->qp_num, local_.packet_sequence,
                     local_.packet_sequence, static_cast<ibv_mtu>(local_.mtu));
}

void VerbsPath::post_probes() {
  if (probes_posted_) {
    return;
  }
  probes_posted_ = true;
  const uint32_t mtu = 128U << std::min(local_.mtu, peer_.mtu);
  for (const auto internal : {Internal::small_probe, Internal::full_probe}) {
    const uint32_t bytes = internal == Internal::small_probe ? 16 : mtu;
    const Gather gather{port_.scratch_.data(), bytes, port_.scratch_region_.local_key()};
    post_internal(internal, CompletionKind::send, std::span(&gather, 1));
  }
}

void VerbsPath::check_ready() {
  if (state_ != PathState::connecting) {
    return;
  }
  if (probes_received_ == 2 && !options_.active) {
    post_probes();
  }
  if (probes_received_ == 2 && probes_acknowledged_ == 2) {
    port_.env_.timers->cancel(timer_);
    state_ = PathState::ready;
    port_.queue_state(*this);
  }
}

void VerbsPath::failure_domains(FailureDomains& domains) const {
  using Kind = FailureDomain::Kind;
  domains.push_back({Kind::local_nic, options_.nic});
  if (peer_.queue_pair != 0) {
    domains.push_back({Kind::remote_nic, local_.link == LinkLayer::ethernet
                                             ? gid_address(peer_.gid).text()
                                             : fmt::format("LID {}", peer_.lid)});
  }
}

std::string VerbsPath::describe() const {
  return fmt::format("{} {}:{} {} -> {} qp {} -> {} mtu {}", to_text(local_.link), info_.device,
                     info_.port, gid_ ? gid_text(gid_->bytes) : fmt::format("LID {}", local_.lid),
                     peer_.queue_pair == 0                ? "?"
                     : local_.link == LinkLayer::ethernet ? gid_text(peer_.gid)
                                                          : fmt::format("LID {}", peer_.lid),
                     local_.queue_pair, peer_.queue_pair, 128U << std::min(local_.mtu, peer_.mtu));
}

}  // namespace nccl_ha::fabric::verbs
