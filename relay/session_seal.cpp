#include "relay/session_seal.h"

#include <algorithm>
#include <array>

#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {
namespace {

constexpr std::string_view purpose_stream = "key of a session's stream";
constexpr std::string_view purpose_message = "message of a session";
constexpr std::string_view purpose_hello = "hello";
constexpr std::string_view purpose_beside = "what goes beside a session's stream";

std::vector<std::byte> with_room_for_tag(std::span<const std::byte> message) {
  std::vector<std::byte> bytes(message.begin(), message.end());
  set_session_message_length(bytes, message.size() + tag_bytes);
  return bytes;
}

}  // namespace

Result<std::vector<std::byte>> SessionSeal::hello() {
  if (!named_) {
    return fail(Errc::remote, "the key that the neighbour's ticket is made with is not known here");
  }
  if (dials_) {
    std::vector<std::byte> proven =
        with_room_for_tag(encode(SessionHello{named_->ticket, nonce_, encrypts_}));
    const Tag tag = make_tag(named_->key, purpose_hello, proven);
    proven.insert(proven.end(), tag.begin(), tag.end());
    return proven;
  }
  return seal(encode(SessionHello{named_->ticket, nonce_, encrypts_}));
}

Result<void> SessionSeal::on_hello(const SessionHello& hello, std::span<const std::byte> sealed) {
  const auto named = dials_ ? named_ : keys_.find(hello.ticket);
  const auto proven = [&] {
    return sealed.size() > tag_bytes &&
           same_tag(make_tag(named->key, purpose_hello, sealed.first(sealed.size() - tag_bytes)),
                    sealed.last(tag_bytes));
  };
  if (!named || (dials_ && hello.ticket != named->ticket) || (!dials_ && !proven())) {
    return fail(
        Errc::remote,
        "a neighbour whose cluster key or ticket is not known here (HA_NCCL_MESH_KEY_FILE)");
  }
  named_ = named;
  encrypts_ = encrypts_ || hello.encrypts;
  const auto& dialler = dials_ ? nonce_ : hello.nonce;
  const auto& dialled = dials_ ? hello.nonce : nonce_;
  key_ = derive_key(named->key, purpose_stream, dialler, dialled);
  return {};
}

SharedKey SessionSeal::shared() const { return {derive_key(*key_, purpose_beside, {}), encrypts_}; }

Tag SessionSeal::tag_of(bool from_dialler, uint64_t number,
                        std::span<const std::byte> message) const {
  std::array<std::byte, sizeof(uint64_t) + 1> place{};
  fabric::put(place.data(), 0, number);
  fabric::put(place.data(), sizeof(uint64_t), static_cast<uint8_t>(from_dialler));
  return make_tag(*key_, purpose_message, place, message);
}

std::vector<std::byte> SessionSeal::seal(std::span<const std::byte> message) {
  std::vector<std::byte> sealed = with_room_for_tag(message);
  const Tag tag = tag_of(dials_, sent_++, sealed);
  sealed.insert(sealed.end(), tag.begin(), tag.end());
  return sealed;
}

Result<std::vector<std::byte>> SessionSeal::unseal(std::span<const std::byte> sealed) {
  if (sealed.size() < session_header_bytes + tag_bytes ||
      !same_tag(tag_of(!dials_, received_, sealed.first(sealed.size() - tag_bytes)),
                sealed.last(tag_bytes))) {
    return fail(Errc::remote,
                "a message that is not of the neighbour, or whose key is not this host's");
  }
  ++received_;
  std::vector<std::byte> message(sealed.begin(), sealed.end() - tag_bytes);
  set_session_message_length(message, message.size());
  return message;
}

}  // namespace nccl_ha::relay
