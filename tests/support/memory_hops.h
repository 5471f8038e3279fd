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
  Result<std::shared_ptr<fabric::OwnMemory>> own_memory(const relay::HopPlace&, uint64_t domain,
                                                        std::shared_ptr<void> bytes,
                                                        size_t length) override {
    return fabric::TableMemory::make(memory_, domain, std::move(bytes), length);
  }
  Result<fabric::RegionKeys> keys_of(const relay::HopPlace&, uint64_t, uint32_t) override {
    return fail(Errc::invalid_usage, "no device");
  }
  bool has_gpu_memory(uint64_t) const override { return false; }
  fabric::Memory& memory() override { return memory_; }

 private:
  fabric::Memory memory_;
};

}  // namespace nccl_ha::test
