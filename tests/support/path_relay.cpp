// The contract suite over a relay: three simulated processes in a line, real engines, virtual time.

#include <array>

#include "tests/support/path_harness.h"
#include "tests/support/relay_line.h"

namespace nccl_ha::test {
namespace {

uint64_t next_relay_domain = 1;

class RelayHarness final : public PathHarness {
 public:
  RelayHarness(const RelayLine::Options& options, bool lossy) : line_(options), lossy_(lossy) {}
  ~RelayHarness() override = default;

  std::unique_ptr<End> make_end(int side, fabric::PathOptions options) override {
    auto end = std::make_unique<PathEnd>();
    const size_t host = side == 0 ? 0 : line_.hosts() - 1;
    fabric::Memory& memory = line_.process(host).provider->memory();
    const uint64_t domain = next_relay_domain++;
    options.domain = domain;
    auto add = [&memory](uint64_t owner, void* base, size_t bytes) {
      auto key = memory.add(owner, base, bytes);
      return key ? PathKeys{*key, *key, *key} : PathKeys{};
    };
    end->add = [=](void* base, size_t bytes) { return add(domain, base, bytes); };
    end->add_foreign = [=](void* base, size_t bytes) { return add(domain + 1000000, base, bytes); };
    end->remove = [&memory](PathKeys keys) { static_cast<void>(memory.remove(keys.local)); };
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
};

}  // namespace

std::unique_ptr<PathHarness> make_relay_harness(uint64_t seed, size_t relays, double loss,
                                                bool store, RelayHops hops) {
  RelayLine::Options options;
  options.rdma = [hops](size_t host) -> size_t {
    switch (hops) {
      case RelayHops::datagrams:
        return 0;
      case RelayHops::rc:
      case RelayHops::ud:
        return 2;
      case RelayHops::rc_first:
        return std::array<size_t, 5>{1, 1, 2, 0, 0}.at(host);
      case RelayHops::rc_last:
        return std::array<size_t, 4>{0, 2, 2, 1}.at(host);
    }
    return 0;
  };
  if (hops == RelayHops::ud) {
    options.config.fabric = "ud";
  }
  options.seed = seed;
  options.relays = relays;
  options.loss = loss;
  options.relay.store = store;
  return std::make_unique<RelayHarness>(options, loss > 0);
}

}  // namespace nccl_ha::test
