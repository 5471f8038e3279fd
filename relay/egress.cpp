#include "relay/egress.h"

#include "relay/forwarder.h"

namespace nccl_ha::relay {

Egress::Egress(Context& context, const FairShares::Limits& limits, RelayCounters& counters)
    : context_(context), shares_(limits), counters_(counters) {
  timer_.bind([](void* self) { static_cast<Egress*>(self)->serve(); }, this);
}

Egress::~Egress() { context_.timers().cancel(timer_); }

uint32_t Egress::enter(Forwarder* forwarder) {
  const uint32_t member = shares_.enter();
  if (forwarders_.size() <= member) {
    forwarders_.resize(member + 1);
  }
  forwarders_[member] = forwarder;
  return member;
}

void Egress::leave(uint32_t member) {
  forwarders_[member] = nullptr;
  shares_.leave(member);
  serve();
}

void Egress::want(uint32_t member) {
  shares_.want(member);
  serve();
}

void Egress::done(uint32_t member, uint64_t bytes) {
  shares_.done(member, bytes, context_.now());
  serve();
}

void Egress::serve() {
  const uint64_t stalls = shares_.stalls();
  shares_.serve(context_.now(), [this](uint32_t member, uint64_t bytes) {
    return forwarders_[member]->pass_on(bytes);
  });
  counters_.stalls.add(shares_.stalls() - stalls);
  if (const auto blocked = shares_.blocked(); blocked && !timer_.armed()) {
    ++counters_.held_back;
    context_.timers().arm(timer_, context_.now() + *blocked);
  }
}

}  // namespace nccl_ha::relay
