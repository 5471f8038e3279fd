// Packets of discovery from anybody, and topology files.  What is decoded is encoded again; then it
// goes to a host with a neighbour, as from that neighbour, so that it gets past the first gate.
#include <cstring>
#include <memory>

#include "relay/discovery.h"
#include "relay/routes.h"
#include "relay/shape.h"
#include "relay/topology_file.h"
#include "runtime/fabric/byte_order.h"

namespace {

using namespace nccl_ha;

struct NoOutput : relay::DiscoveryOutput {
  void send(uint32_t, const fabric::SocketAddress*, std::span<const std::byte>) override {}
};

constexpr relay::NodeId self{1};
constexpr relay::NodeId neighbour{2};

void feed(std::span<const std::byte> bytes) {
  NoOutput output;
  relay::Discovery discovery({self, 1, "self", {}, true}, {}, 1, output);
  Instant now{std::chrono::seconds(1)};
  discovery.set_interfaces({{1, "one", 1000}, {2, "two", 1000}}, now);
  fabric::SocketAddress from;
  nccl_ha::IpAddress address;
  address.bytes = {10, 0, 0, 2};
  from.length = address.to_sockaddr(1, &from.storage);
  relay::HelloPacket hello;
  hello.dead_ms = 60000;
  hello.heard = {{self, 1, 1}};
  discovery.receive(1, from, encode(relay::DiscoveryPacket{neighbour, 1, hello, 1}), now);
  discovery.tick(now);
  std::vector<std::byte> packet(bytes.begin(), bytes.end());
  if (packet.size() >= relay::discovery_header_bytes) {
    fabric::put(packet.data(), 8, relay::number(neighbour));
    fabric::put(packet.data(), 16, uint32_t{1});
    fabric::put(packet.data(), 20, uint32_t{1});
  }
  discovery.receive(1, from, packet, now);
  for (int i = 0; i < 4; ++i) {
    now += std::chrono::milliseconds(700);
    discovery.tick(now);
  }
  const relay::Topology topology = discovery.topology(now);
  if (topology.find(self)) {
    relay::shape_of(topology, *topology.find(self));
    relay::RouteTable::make(topology, self, {});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto packet = relay::decode_packet(bytes)) {
    const auto again = encode(*packet);
    if (again.size() != size || std::memcmp(again.data(), data, size) != 0) {
      __builtin_trap();  // what was accepted must be what was sent
    }
  }
  feed(bytes);
  static_cast<void>(relay::parse_topology_file({reinterpret_cast<const char*>(data), size}, "f"));
  return 0;
}
