// Packets between simulated RDMA NICs, and datagrams, which need nothing more.
#include <algorithm>
#include <cstring>

#include "tests/rig/sim/rdma_objects.h"

namespace nccl_ha::sim {
namespace {

constexpr int64_t bytes_per_ns = 10;
constexpr size_t header_bytes = 64;
/// What a device puts in front of each datagram that it receives (IBTA 11.4.1.2).
constexpr uint32_t route_header_bytes = 40;

}  // namespace

RdmaPacket& RdmaNic::new_packet() {
  if (free_packets_.empty()) {
    packets_.push_back(std::make_unique<RdmaPacket>());
    free_packets_.push_back(packets_.back().get());
  }
  RdmaPacket& packet = *free_packets_.back();
  free_packets_.pop_back();
  packet.bytes.clear();  // its room stays
  return packet;
}

void RdmaNic::drop(RdmaPacket& packet) { free_packets_.push_back(&packet); }

/// The packet goes its way; it is not the caller's any more.
void RdmaNic::send_packet(const RdmaQueuePair& pair, RdmaPacket& packet) {
  Port& port = ports_[pair.port];
  packet.from = port.address;
  packet.from_pair = pair.qp_num;
  ++conditions_.counts.packets;
  // A port without link, or an address that is not at that place of the table any more.
  if (failed_ || !port.up || (pair.gid_place != 0 && pair.gid_place != port.gid_place)) {
    ++conditions_.counts.lost;
    drop(packet);
    return;
  }
  transmit(port, packet);
}

void RdmaNic::transmit(Port& port, RdmaPacket& packet) {
  const Link& way = network_.link(packet.from, packet.to);
  if (packet.to == 0 || network_.blocked(packet.from, packet.to)) {
    ++network_.counts_.cut;
    drop(packet);
    return;
  }
  const auto bytes = static_cast<int64_t>(packet.bytes.size() + header_bytes);
  network_.carried_[{packet.from, packet.to}] += packet.bytes.size();
  const Duration takes = way.rate == 0
                             ? Duration(bytes / bytes_per_ns + 1)
                             : Duration(static_cast<int64_t>(1e9 * static_cast<double>(bytes) /
                                                             static_cast<double>(way.rate)));
  port.wire_free = std::max(port.wire_free, network_.now()) + takes;
  if (random_.chance(way.drop)) {
    ++network_.counts_.dropped;
    ++conditions_.counts.lost;
    drop(packet);
    return;
  }
  packet.copies = random_.chance(way.duplicate) ? 2 : 1;
  network_.counts_.duplicated += packet.copies - 1;
  for (unsigned left = packet.copies; left != 0; --left) {
    Instant due = port.wire_free + way.delay;
    if (random_.chance(way.reorder)) {
      ++network_.counts_.reordered;
      due += Duration(random_.below(static_cast<uint64_t>(4 * way.delay.count() + 1)));
    }
    network_.at(due, [this, &packet] { deliver(packet); });
  }
}

void RdmaNic::deliver(RdmaPacket& packet) {
  const auto nic = network_.rdma_.find(packet.to);
  if (network_.blocked(packet.from, packet.to) || nic == network_.rdma_.end()) {
    ++network_.counts_.cut;
  } else {
    network_.mix(static_cast<uint64_t>(network_.now().time_since_epoch().count()));
    network_.mix(packet.number << 24 | packet.to_pair);
    nic->second->arrive(packet);
  }
  if (--packet.copies == 0) {
    drop(packet);
  }
}

void RdmaNic::arrive(const RdmaPacket& packet) {
  RdmaQueuePair* pair = find(packet.to_pair);
  const Port& port = *port_of(packet.to);
  if (failed_ || !port.up) {
    ++conditions_.counts.lost;
    if ((lies() || hangs()) && port.up) {
      take_late(packet);
    }
    return;
  }
  const bool takes = pair != nullptr && &ports_[pair->port] == &port &&
                     (pair->state == IBV_QPS_RTR || pair->state == IBV_QPS_RTS || pair->lags);
  if (packet.kind == RdmaPacket::datagram) {
    if (takes && pair->qp_type == IBV_QPT_UD) {
      on_datagram(*pair, packet);
    }
    return;
  }
  if (!takes || pair->to_pair != packet.from_pair || pair->to != packet.from) {
    ++conditions_.counts.after_error;
    return;
  }
  if (packet.bytes.size() > traits_.mtu) {
    conditions_.violation = "a packet is larger than the MTU of the port that it comes to";
  }
  if (packet.kind == RdmaPacket::request) {
    conditions_.counts.lagging += pair->lags ? 1 : 0;
    on_request(*pair, packet);
  } else {
    on_answer(*pair, packet);
  }
}

/// Done when it has left.
void RdmaNic::post_datagram(RdmaQueuePair& pair, const ibv_send_wr& request) {
  ibv_wc done{};
  done.wr_id = request.wr_id;
  done.opcode = IBV_WC_SEND;
  done.status = pair.state == IBV_QPS_ERR ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS;
  const auto& route = *static_cast<const RdmaRoute*>(request.wr.ud.ah);
  RdmaPacket& packet = new_packet();
  packet.kind = RdmaPacket::datagram;
  packet.to = route.to;
  packet.to_pair = request.wr.ud.remote_qpn;
  packet.number = 0;
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& part = request.sg_list[i];
    const bool inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
    if (!inlined && find_region(pair.pd, part.lkey, part.addr, part.length, true) == nullptr) {
      done.status = IBV_WC_LOC_PROT_ERR;
      continue;
    }
    const auto* from = reinterpret_cast<const std::byte*>(part.addr);
    packet.bytes.insert(packet.bytes.end(), from, from + part.length);
  }
  if (packet.bytes.size() > traits_.mtu) {
    conditions_.violation = "a datagram is larger than the MTU";
  }
  const bool reaches = route.neighbours == neighbours_;
  if (done.status == IBV_WC_SUCCESS && reaches) {
    pair.gid_place = route.gid_place;
    send_packet(pair, packet);
  } else {
    conditions_.counts.lost += reaches ? 0 : 1;
    drop(packet);
  }
  if (done.status != IBV_WC_SUCCESS || (request.send_flags & IBV_SEND_SIGNALED) != 0) {
    complete(pair, false, done);
  }
}

/// Without a receive that is large enough, it is lost.
void RdmaNic::on_datagram(RdmaQueuePair& pair, const RdmaPacket& packet) {
  const auto length = static_cast<uint32_t>(packet.bytes.size()) + route_header_bytes;
  if (pair.responder.empty() || pair.responder.front().buffer.length < length) {
    ++conditions_.counts.lost;
    return;
  }
  const RdmaReceive receive = pair.responder.take();
  const Region* region =
      find_region(pair.pd, receive.buffer.lkey, receive.buffer.addr, length, true);
  ibv_wc done{};
  done.wr_id = receive.id;
  done.opcode = IBV_WC_RECV;
  done.byte_len = length;
  done.wc_flags = IBV_WC_GRH;
  done.src_qp = packet.from_pair;
  if (region == nullptr) {
    done.status = IBV_WC_LOC_PROT_ERR;
  } else {
    auto* to = reinterpret_cast<std::byte*>(receive.buffer.addr);
    write(pair, *region, to + route_header_bytes, packet.bytes);
  }
  complete(pair, true, done);
}

}  // namespace nccl_ha::sim
