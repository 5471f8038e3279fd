// The contract suite over a relay: three simulated processes in a line, real engines, virtual time.

#include <array>

#include "runtime/fabric/datagram/udp_factory.h"
#include "tests/support/path_harness.h"
#include "tests/support/relay_line.h"

namespace nccl_ha::test {
namespace {

uint64_t next_relay_domain = 1;

class RelayHarness final : public PathHarness {
 public:
  /// `registered`: so that devices may reach what paths write from and to.
  RelayHarness(const RelayLine::Options& options, bool lossy, bool registered)
      : line_(options), lossy_(lossy), registered_(registered) {}
  ~RelayHarness() override = default;

  std::unique_ptr<End> make_end(int side, fabric::PathOptions options) override {
    auto end = std::make_unique<PathEnd>();
    const size_t host = side == 0 ? 0 : line_.hosts() - 1;
    fabric::Provider& provider = *line_.process(host).provider;
    const uint64_t domain = next_relay_domain++;
    options.domain = domain;
    auto add = [&provider, registered = registered_](uint64_t owner, void* base, size_t bytes) {
      const fabric::Attachment at{0, fabric::datagram_kind};
      const uint32_t key = registered
                               ? provider.add_memory(at, owner, base, bytes, false)->local_key
                               : *provider.memory().add(owner, base, bytes);
      return PathKeys{key, key, key};
    };
    end->add = [=](void* base, size_t bytes) { return add(domain, base, bytes); };
    end->add_foreign = [=](void* base, size_t bytes) { return add(domain + 1000000, base, bytes); };
    end->remove = [&provider](PathKeys keys) {
      fabric::Registration registration;
      registration.local_key = keys.local;
      static_cast<void>(provider.remove_memory(registration));
    };
    auto path = line_.make_path(host, options, &end->owner);
    if (path) {
      end->path = std::move(*path);
    }
    return end;
  }
  bool run_until(const std::function<bool()>& done, Duration limit) override {
    return line_.world().run_until(done, limit);
  }
  bool lossy() const override { return lossy_; }
  void cut() override { line_.cut_all(); }

 private:
  RelayLine line_;
  bool lossy_;
  bool registered_;
};

/// What hops between neighbours are.
enum class Hops : uint8_t {
  datagrams,
  rc,
  ud,
  rc_first,  ///< over three relays: then hosts that have none, whatever the host before them has
  rc_last,   ///< over two relays: datagrams to the first
};

size_t rdma_cables(Hops hops, size_t host) {
  switch (hops) {
    case Hops::datagrams:
      return 0;
    case Hops::rc:
    case Hops::ud:
      return 2;
    case Hops::rc_first:
      return std::array<size_t, 5>{1, 1, 2, 0, 0}.at(host);
    case Hops::rc_last:
      return std::array<size_t, 4>{0, 2, 2, 1}.at(host);
  }
  return 0;
}

/// `loss`: lost, doubled and out of order on each cable.  `store`: a relay passes messages on as a
/// whole.
HarnessFactory over(size_t relays, uint64_t seed, Hops hops, double loss = 0, bool store = false,
                    bool registered = true) {
  return [=] {
    RelayLine::Options options;
    options.seed = seed;
    options.relays = relays;
    options.loss = loss;
    options.relay.store = store;
    options.rdma = [hops](size_t host) { return rdma_cables(hops, host); };
    options.config.fabric = hops == Hops::ud ? "ud" : "auto";
    return std::make_unique<RelayHarness>(options, loss > 0, registered);
  };
}

}  // namespace

std::vector<std::pair<const char*, HarnessFactory>> relay_harnesses() {
  return {{"relay", over(1, 7, Hops::datagrams)},
          {"relay_three_lossy", over(3, 8, Hops::datagrams, 0.01)},
          {"relay_storing", over(2, 9, Hops::datagrams, 0, true)},
          {"relay_rc", over(2, 10, Hops::rc)},
          {"relay_rc_copied", over(2, 14, Hops::rc, 0, false, false)},
          {"relay_ud", over(1, 11, Hops::ud)},
          {"relay_rc_first", over(3, 12, Hops::rc_first)},
          {"relay_rc_last", over(2, 13, Hops::rc_last)}};
}

}  // namespace nccl_ha::test
