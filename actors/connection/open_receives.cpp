#include "actors/connection/open_receives.h"

#include "ha/mutation.h"

namespace nccl_ha {

ha::ArrivalReport OpenReceives::arrivals() const {
  ha::ArrivalReport report;
  report.completed = completed_;
  const uint64_t end = posted_ - (ha::mutated(ha::Mutation::last_group_unreported) ? 1 : 0);
  for (uint64_t number = completed_; number < end; ++number) {
    ha::ArrivalReport::Group& group = report.groups.emplace_back();
    const ReceiveRequest* request = at(number);
    group.whole = request == nullptr && !ha::mutated(ha::Mutation::whole_groups_left_out);
    for (size_t i = 0; request != nullptr && i < request->count; ++i) {
      group.chunks.push_back(request->arrived[i]);
    }
  }
  return report;
}

}  // namespace nccl_ha
