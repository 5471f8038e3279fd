// Unreliable datagrams.
#include <array>
#include <cstring>

#include "tests/rig/nic/nic.h"
#include "tests/rig/nic/pair.h"

namespace nccl_ha::emulated {
namespace {

constexpr uint32_t route_header_bytes = 40;  // IBTA 11.4.1.2

}  // namespace

void Pair::send_datagram(Send& send) {
  const ibv_wc_status local = check_local(send);
  if (local == IBV_WC_SUCCESS) {
    Header header;
    header.from_pair = qp_num;
    header.to_pair = send.to_pair;
    header.from = owner_.on->place(route_.port);
    header.to = send.to;
    header.kind = PacketKind::datagram;
    header.key = send.queue_key;
    if (send.opcode == IBV_WR_SEND_WITH_IMM) {
      header.flags = packet_immediate;
      header.immediate = send.immediate;
    }
    std::array<iovec, pieces_max + 1> parts{};
    size_t count = 0;
    if (!send.inlined.empty()) {
      parts[count++] = {send.inlined.data(), send.inlined.size()};
    }
    for (const Piece& piece : send.pieces) {
      parts[count++] = {reinterpret_cast<void*>(piece.address), piece.length};
    }
    nic_.send(header, std::span(parts).first(count));
  }
  complete_send(send, local);
  if (local != IBV_WC_SUCCESS) {
    stop(IBV_QPS_ERR);
  }
}

void Pair::on_datagram(const Header& header, std::span<const char> payload) {
  if (header.key != route_.queue_key || receives_.empty()) {
    return;
  }
  const Piece& piece = receives_.front().piece;
  const uint64_t bytes = route_header_bytes + payload.size();
  Memory& memory = owner_.on->memory();
  const Region* region = memory.find(piece.key, piece.address, bytes, pd, IBV_ACCESS_LOCAL_WRITE);
  if (bytes > piece.length || region == nullptr) {
    return;
  }
  const std::array<char, route_header_bytes> route{};
  memory.write(*region, piece.address, route.data(), route.size(), false);
  memory.write(*region, piece.address + route_header_bytes, payload.data(), payload.size(), false);
  memory.land();
  complete_receive(IBV_WC_SUCCESS, header, static_cast<uint32_t>(bytes));
}

}  // namespace nccl_ha::emulated
