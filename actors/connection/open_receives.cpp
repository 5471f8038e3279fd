#include "actors/connection/open_receives.h"

namespace nccl_ha {

ha::ArrivalReport OpenReceives::arrivals() const {
  ha::ArrivalReport report;
  report.completed = completed_;
  for (uint64_t number = completed_; number < posted_; ++number) {
    ha::ArrivalReport::Group& group = report.groups.emplace_back();
    const ReceiveRequest* request = at(number);
    group.whole = request == nullptr;
    for (size_t i = 0; request != nullptr && i < request->count; ++i) {
      group.chunks.push_back(request->arrived[i]);
    }
  }
  return report;
}

}  // namespace nccl_ha
