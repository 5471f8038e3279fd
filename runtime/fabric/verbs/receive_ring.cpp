#include "runtime/fabric/verbs/receive_ring.h"

#include <algorithm>
#include <array>

namespace nccl_ha::fabric::verbs {

int ReceiveRing::post_all_held(ibv_qp* pair) {
  NHA_DASSERT(held_ <= ring_.size(), "more receives are held back than there are");
  for (uint32_t left = std::exchange(held_, 0); left != 0;) {
    std::array<ibv_recv_wr, 16> requests;
    const uint32_t count = std::min(left, static_cast<uint32_t>(requests.size()));
    for (uint32_t i = 0; i < count; ++i) {
      requests[i] = {};
      requests[i].wr_id = ids_.at(ring_.tail() - left + i);
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(pair, requests.data(), &bad); error != 0) {
      never_posted_ = left - (bad == nullptr ? 0 : static_cast<uint32_t>(bad - requests.data()));
      return error;
    }
    left -= count;
  }
  return 0;
}

bool ReceiveRing::post(ibv_qp* pair) {
  NHA_DASSERT(held_ == 0 && never_posted_ == 0, "the device is given receives in order");
  ibv_recv_wr request{};
  request.wr_id = ids_.at(ring_.tail());
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(pair, &request, &bad) != 0) {
    return false;
  }
  ring_.push() = {};
  return true;
}

}  // namespace nccl_ha::fabric::verbs
