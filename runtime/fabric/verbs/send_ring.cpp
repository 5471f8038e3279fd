#include "runtime/fabric/verbs/send_ring.h"

namespace nccl_ha::fabric::verbs {
namespace {

// A large message is worth a completion of its own: whoever waits for it can reuse its buffer.
constexpr uint32_t signal_bytes = 16384;

}  // namespace

SendRing::SendRing(const WorkId& ids, uint32_t writes_max)
    : ids_(ids),
      writes_max_(writes_max),
      ring_(writes_max + 2 * internal_max),
      requests_(ring_.capacity() + 1),
      sges_(ring_.capacity()) {
  for (size_t i = 0; i < sges_.size(); ++i) {
    requests_[i].sg_list = sges_[i].data();
  }
}

void SendRing::choose_signals_of_many(uint32_t count) {
  const uint32_t first = ring_.tail() - count;
  const uint32_t most = unsignaled_max();
  bool awaited = false;
  for (uint32_t i = count; i != 0; --i) {
    const uint32_t at = i - 1;
    const Slot& slot = ring_.at(first + at);
    if (!slot.unsignaled && (!awaited || slot.bytes >= signal_bytes)) {
      awaited = true;
      requests_[at].send_flags |= IBV_SEND_SIGNALED;
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    ibv_send_wr& request = requests_[i];
    if (++unsignaled_ >= most) {
      request.send_flags |= IBV_SEND_SIGNALED;
    }
    if ((request.send_flags & IBV_SEND_SIGNALED) != 0) {
      unsignaled_ = 0;
    }
    request.next = &requests_[i + 1];
  }
  requests_[count - 1].next = nullptr;
}

}  // namespace nccl_ha::fabric::verbs
