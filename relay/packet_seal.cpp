#include "relay/packet_seal.h"

#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {
namespace {

constexpr std::string_view purpose_packet = "discovery packet";
constexpr size_t senders_max = 4096;
constexpr size_t sender_offset = 8;
constexpr size_t incarnation_offset = 16;

/// One life of a host's process, which numbers its packets.
uint64_t sender_of(std::span<const std::byte> packet) {
  return fabric::get<uint64_t>(packet.data(), sender_offset) ^
         fabric::get<uint32_t>(packet.data(), incarnation_offset) * 0x9E3779B97F4A7C15;
}

}  // namespace

PacketSeal::PacketSeal()
    : window_(ha::ReplayWindow::Limits{std::chrono::hours(1), senders_max}, 0) {}

std::vector<std::byte> PacketSeal::seal(std::span<const std::byte> packet) {
  std::vector<std::byte> sealed(packet.begin(), packet.end());
  if (keys_ == nullptr) {
    return sealed;
  }
  const uint32_t number = keys_->first();
  sealed.resize(packet.size() + packet_seal_bytes);
  fabric::put(sealed.data(), packet.size(), ++sent_);
  fabric::put(sealed.data(), packet.size() + sizeof(uint64_t), number);
  const auto covered = std::span(sealed).first(sealed.size() - tag_bytes);
  const Tag tag = make_tag(*keys_->find(number), purpose_packet, covered);
  std::copy(tag.begin(), tag.end(), sealed.end() - tag_bytes);
  return sealed;
}

Result<std::span<const std::byte>> PacketSeal::open(std::span<const std::byte> sealed,
                                                    Instant now) {
  if (keys_ == nullptr) {
    return sealed;
  }
  const HashKey* key = nullptr;
  if (sealed.size() >= discovery_header_bytes + packet_seal_bytes) {
    key = keys_->find(
        fabric::get<uint32_t>(sealed.data(), sealed.size() - tag_bytes - sizeof(uint32_t)));
  }
  if (key == nullptr ||
      !same_tag(make_tag(*key, purpose_packet, sealed.first(sealed.size() - tag_bytes)),
                sealed.last(tag_bytes))) {
    ++counts_.forged;
    return fail(Errc::remote, "a packet of a host without the cluster's key");
  }
  const auto packet = sealed.first(sealed.size() - packet_seal_bytes);
  const int64_t stamp = now.time_since_epoch().count();
  const auto verdict = window_.take(
      sender_of(packet), fabric::get<uint64_t>(sealed.data(), packet.size()), stamp, stamp);
  if (verdict != ha::ReplayWindow::Verdict::fresh) {
    ++counts_.repeated;
    return fail(Errc::remote, "a packet that came before");
  }
  return packet;
}

}  // namespace nccl_ha::relay
