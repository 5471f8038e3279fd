// Datagrams from anybody: whatever arrives, the decoder and a live port stay sound.  The first half
// of the input is decoded as it is; then it is fed to a port with an open path, with the path's id
// and token put in so that the input gets past the first gate.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/wire.h"
#include "tests/rig/sim/secrets.h"
#include "tests/support/memory_network.h"
#include "tests/support/path_harness.h"

namespace {

using namespace nccl_ha;

struct World {
  /// `sealed`: with a key that nobody else has.
  explicit World(bool sealed) : network(1), timers(clock.now()), secrets(1), buffer(1 << 16) {
    clock.set(Instant(std::chrono::seconds(1)));
    network.set_time(clock.now());
    fabric::DatagramPort::Environment environment;
    environment.memory = &memory;
    environment.clock = &clock;
    environment.timers = &timers;
    environment.secrets = &secrets;
    fabric::DatagramOptions options;
    options.window = 64;
    auto io = network.open();
    command_port = io->local(fabric::Channel::command).port();
    data_port = io->local(fabric::Channel::data).port();
    port = std::make_unique<fabric::DatagramPort>(std::move(io), options, environment, 1500);
    fabric::PathOptions sizes;
    sizes.domain = 1;
    sizes.writes_max = 16;
    sizes.receives_max = 16;
    if (sealed) {
      sizes.shared = SharedKey{{std::byte{7}}, false};
    }
    path = port->create_path(sizes, &owner).value();
    // Connected to itself: its own address is as good as a peer's.
    auto self = path->local_address();
    std::vector<std::byte> address(self.begin(), self.end());
    static_cast<void>(path->connect(address));
    const auto decoded = fabric::decode_address(address);
    id = decoded->path;
    token = decoded->token.told();
    key = *memory.add(1, buffer.data(), buffer.size());
    for (int i = 0; i < 8; ++i) {
      static_cast<void>(path->post_receive());
    }
  }
  void turn() {
    port->poll(clock);
    timers.expire(clock.now());
    clock.advance(std::chrono::microseconds(30));
    network.set_time(clock.now());
  }
  ManualClock clock;
  test::MemoryNetwork network;
  fabric::Memory memory;
  TimerWheel timers;
  sim::SimSecrets secrets;
  test::RecordingOwner owner;
  std::vector<std::byte> buffer;
  std::unique_ptr<fabric::DatagramPort> port;
  std::unique_ptr<fabric::Path> path;
  uint16_t command_port = 0;
  uint16_t data_port = 0;
  uint32_t id = 0;
  uint64_t token = 0;
  uint32_t key = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto header = fabric::decode(std::span(bytes, size), size);
  if (header) {
    std::byte again[fabric::header_bytes];
    fabric::encode(*header, again);
    if (std::memcmp(again, bytes, sizeof again) != 0) {
      __builtin_trap();  // what was accepted must be what was sent
    }
  }
  static_cast<void>(fabric::decode_address(std::span(bytes, size)));
  if (size < 2) {
    return 0;
  }
  const bool sealed = (data[0] & 4) != 0;
  World world(sealed);
  world.turn();
  const bool on_data = (data[0] & 1) != 0;
  const size_t step = 64 + static_cast<size_t>(data[1]) * 8;
  for (size_t offset = 2; offset < size; offset += step) {
    std::vector<std::byte> packet(bytes + offset, bytes + std::min(size, offset + step));
    if (packet.size() >= fabric::header_bytes) {
      std::memcpy(packet.data() + 4, &world.id, 4);
      std::memcpy(packet.data() + 8, &world.token, 8);
      if ((data[0] & 2) != 0) {
        std::memcpy(packet.data() + 52, &world.key, 4);
        const auto base = reinterpret_cast<uint64_t>(world.buffer.data());
        uint64_t address = 0;
        std::memcpy(&address, packet.data() + 56, 8);
        address = base + address % (2 * world.buffer.size());
        std::memcpy(packet.data() + 56, &address, 8);
      }
    }
    world.network.inject(on_data ? world.data_port : world.command_port, std::move(packet));
    world.turn();
  }
  for (int i = 0; i < 4; ++i) {
    world.turn();
  }
  if (sealed &&
      static_cast<const fabric::DatagramPath&>(*world.path).statistics().segments_received != 0) {
    __builtin_trap();  // nobody has sealed that
  }
  if (const auto wrong = static_cast<const fabric::DatagramPath&>(*world.path).self_check()) {
    std::fprintf(stderr, "%s\n", wrong->c_str());
    __builtin_trap();
  }
  return 0;
}
