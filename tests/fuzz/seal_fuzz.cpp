// What somebody without the cluster's key may say to hosts that have one, and key files.  Nothing
// that is made up is believed; of what was sealed no changed copy is.
#include <algorithm>
#include <memory>
#include <vector>

#include "relay/packet_seal.h"
#include "relay/session_seal.h"
#include "runtime/streams/stream_seal.h"

namespace {

using namespace nccl_ha;

std::shared_ptr<const KeyRing> secret_keys() {
  KeyRing keys;
  for (uint32_t number = 1; number <= 3; ++number) {
    HashKey key;
    for (size_t i = 0; i < key.size(); ++i) {
      key[i] = static_cast<std::byte>(i * 37 + number * 101);
    }
    keys.add(number, key);
  }
  return std::make_shared<const KeyRing>(keys);
}

const std::shared_ptr<const KeyRing> keys = secret_keys();
constexpr Instant now{std::chrono::seconds(1)};

void feed_packet(std::span<const std::byte> bytes) {
  relay::PacketSeal receiver;
  receiver.set_keys(keys);
  if (receiver.open(bytes, now)) {
    __builtin_trap();  // nobody has sealed that
  }
  relay::PacketSeal sender;
  sender.set_keys(keys);
  const auto sealed =
      sender.seal(encode(relay::DiscoveryPacket{relay::NodeId{7}, 1, relay::QueryPacket{}}), 1);
  auto changed = sealed;
  for (size_t i = 0; i < std::min(changed.size(), bytes.size()); ++i) {
    changed[i] ^= bytes[i];
  }
  if (receiver.open(changed, now).ok() != (changed == sealed)) {
    __builtin_trap();
  }
}

relay::NamedKey secret_ticket() {
  return relay::make_named_key(*keys->find(1), {1, relay::NodeId{7}, 1, 1000, {}});
}

/// `own`: with the cluster's keys, or a ticket of a process.
void feed_session(std::span<const std::byte> bytes, const relay::SealKeys& own) {
  for (const bool dials : {false, true}) {
    relay::SessionSeal seal(own, dials, {});
    const auto message = relay::decode_session_message(bytes);
    const auto* hello = message ? std::get_if<relay::SessionHello>(&*message) : nullptr;
    if (!seal.on_hello(hello != nullptr ? *hello : relay::SessionHello{{.key = 1}, {}}, bytes)) {
      continue;
    }
    if (!dials || seal.unseal(bytes)) {
      __builtin_trap();
    }
  }
}

/// Before a stream is open nothing that is made up opens it; behind that no made-up record is
/// taken, whatever came before it.
void feed_stream(std::span<const std::byte> bytes) {
  for (const bool dials : {false, true}) {
    StreamSeal alone(keys, dials, false, {});
    if (dials) {
      static_cast<void>(alone.greet());
    }
    static_cast<void>(alone.hear(bytes));
    if (alone.open()) {
      __builtin_trap();
    }
    StreamSeal dialler(keys, true, bytes.size() % 2 == 0, {});
    StreamSeal dialled(keys, false, false, {std::byte{1}});
    auto greeted = dialled.hear(dialler.greet());
    if (!greeted || !dialler.hear(greeted->answer)) {
      __builtin_trap();
    }
    StreamSeal& hearer = dials ? dialler : dialled;
    const auto heard = hearer.hear(bytes);
    if (heard && !heard->bytes.empty()) {
      __builtin_trap();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  feed_packet(bytes);
  feed_session(bytes, keys);
  const auto tickets = std::make_shared<relay::Tickets>();
  tickets->add(secret_ticket());
  feed_session(bytes, std::shared_ptr<const relay::Tickets>(tickets));
  feed_stream(bytes);
  static_cast<void>(KeyRing::parse({reinterpret_cast<const char*>(data), size}, "file"));
  return 0;
}
