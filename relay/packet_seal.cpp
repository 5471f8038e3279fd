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
  const uint64_t life = fabric::get<uint32_t>(packet.data(), incarnation_offset);
  return fabric::get<uint64_t>(packet.data(), sender_offset) ^ life * 0x9E3779B97F4A7C15;
}

}  // namespace

PacketSeal::PacketSeal()
    : window_(ha::ReplayWindow::Limits{std::chrono::hours(1), senders_max}, 0) {}

std::vector<std::byte> PacketSeal::seal(std::span<const std::byte> packet, uint32_t number) {
  std::vector<std::byte> sealed(packet.begin(), packet.end());
  const HashKey* key = keys_ != nullptr ? keys_->find(number) : nullptr;
  if (key == nullptr) {
    return sealed;
  }
  sealed.resize(packet.size() + packet_seal_bytes);
  fabric::put(sealed.data(), packet.size(), ++sent_);
  fabric::put(sealed.data(), packet.size() + sizeof(uint64_t), number);
  const auto covered = std::span(sealed).first(sealed.size() - tag_bytes);
  const Tag tag = make_tag(*key, purpose_packet, covered);
  std::copy(tag.begin(), tag.end(), sealed.end() - tag_bytes);
  return sealed;
}

Result<PacketSeal::Opened> PacketSeal::open(std::span<const std::byte> sealed, Instant now) {
  if (keys_ == nullptr) {
    return Opened{sealed, 0};
  }
  const HashKey* key = nullptr;
  uint32_t number = 0;
  if (sealed.size() >= discovery_header_bytes + packet_seal_bytes) {
    number = fabric::get<uint32_t>(sealed.data(), sealed.size() - tag_bytes - sizeof(uint32_t));
    key = keys_->find(number);
  }
  if (key == nullptr ||
      !same_tag(make_tag(*key, purpose_packet, sealed.first(sealed.size() - tag_bytes)),
                sealed.last(tag_bytes))) {
    if (open_) {
      return Opened{sealed, 0};  // one that is sealed with another key is none that makes sense
    }
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
  return Opened{packet, number};
}

}  // namespace nccl_ha::relay
