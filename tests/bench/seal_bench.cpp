// What the seal of a datagram frame costs (HA_NCCL_KEY_FILE, HA_NCCL_ENCRYPT): nanoseconds for each
// side and frame, and bytes of payload a second of one processor.  Beside it what a copy of the
// payload costs, which is the peer: a sealed path copies what another one places.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/fabric/datagram/frame_seal.h"

namespace nccl_ha {
namespace {

using namespace fabric;

constexpr int repetitions = 7;
constexpr size_t frames = 1000;  // fewer than a receiver may be behind

WireAddress end_of(uint32_t path) {
  WireAddress address;
  address.path = path;
  address.token = Secret::heard(path);
  return address;
}

struct Costs {
  double close_ns = 1e9;
  double open_ns = 1e9;
  double copy_ns = 1e9;
  bool right = true;
};

Costs measure(size_t payload, bool encrypts) {
  SteadyClock clock;
  const auto each = [&](double& best, auto&& work) {
    const Instant begin = clock.now();
    for (size_t i = 0; i < frames; ++i) {
      work(i);
    }
    best = std::min(best, static_cast<double>((clock.now() - begin).count()) / frames);
  };
  FrameHeader header;
  header.flags = flag_sealed;
  header.payload_length = static_cast<uint16_t>(payload);
  SharedKey shared;
  shared.encrypts = encrypts;
  FrameSeal sender(shared, end_of(1), end_of(2));
  FrameSeal receiver(shared, end_of(2), end_of(1));
  std::vector<std::vector<std::byte>> made(frames, std::vector<std::byte>(header.frame_bytes()));
  std::vector<std::byte> plain(payload);
  Costs costs;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (auto& frame : made) {
      encode(header, frame.data());
    }
    each(costs.close_ns, [&](size_t i) { sender.close(made[i]); });
    each(costs.open_ns,
         [&](size_t i) { costs.right = receiver.open(made[i], plain).has_value() && costs.right; });
    each(costs.copy_ns,
         [&](size_t i) { std::memcpy(plain.data(), made[i].data() + header_bytes, payload); });
  }
  return costs;
}

int run() {
  bool right = true;
  std::printf("payload  what       close ns   open ns   copy ns   close GB/s  open GB/s\n");
  for (const size_t payload : {size_t{0}, size_t{128}, size_t{1280}, size_t{8832}}) {
    for (const bool encrypts : {false, true}) {
      const Costs costs = measure(payload, encrypts);
      right = right && costs.right;
      std::printf("%7zu  %-9s %9.0f %9.0f %9.0f %12.2f %10.2f\n", payload,
                  encrypts ? "encrypted" : "tagged", costs.close_ns, costs.open_ns, costs.copy_ns,
                  static_cast<double>(payload) / costs.close_ns,
                  static_cast<double>(payload) / costs.open_ns);
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace nccl_ha

int main() { return nccl_ha::run(); }
