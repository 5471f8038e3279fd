// Where hops come from that nobody makes: what lines of frames need to have memory.
#pragma once

#include "relay/hop_source.h"

namespace nccl_ha::test {

class MemoryHops final : public relay::HopSource {
 public:
  std::vector<relay::HopPlace> places(const sockaddr*) const override { return {{}}; }
  void avoid(const relay::HopPlace&, relay::NodeId, Instant, const std::string&) override {}
  bool avoids(const relay::HopPlace&, relay::NodeId, Instant) const override { return false; }
  Result<fabric::OwnedPath> make_hop(Context&, const relay::HopPlace&, const sockaddr*,
                                     const fabric::PathOptions&, fabric::PathOwner*) override {
    return fail(Errc::invalid_usage, "no cable");
  }
  Result<fabric::Registration> add_memory(const relay::HopPlace&, uint64_t domain, void* base,
                                          size_t bytes) override {
    auto key = memory_.add(domain, base, bytes);
    if (!key) {
      return key.error();
    }
    fabric::Registration made;
    made.local_key = *key;
    made.remote_key = *key;
    return made;
  }
  void remove_memory(const fabric::Registration& registration) override {
    static_cast<void>(memory_.remove(registration.local_key));
  }
  Result<fabric::RegionKeys> keys_of(const relay::HopPlace&, uint64_t, uint32_t) override {
    return fail(Errc::invalid_usage, "no device");
  }
  bool has_gpu_memory(uint64_t) const override { return false; }
  uint64_t gpu_registrations() const override { return 0; }
  fabric::Memory& memory() override { return memory_; }

 private:
  fabric::Memory memory_;
};

}  // namespace nccl_ha::test
