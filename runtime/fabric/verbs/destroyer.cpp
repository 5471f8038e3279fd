#include "runtime/fabric/verbs/destroyer.h"

#include <cerrno>
#include <utility>

namespace nccl_ha::fabric::verbs {

std::shared_ptr<const Destruction> Destroyer::destroy(const std::array<ibv_qp*, 2>& pairs,
                                                      std::shared_ptr<void> keep) {
  auto destruction = std::make_shared<Destruction>();
  errands_.add(
      [&library = library_, context = context_, destruction, pairs, keep = std::move(keep)] {
        int error = 0;
        for (ibv_qp* pair : pairs) {
          const int failed = pair == nullptr ? 0 : library.queue_pair.destroy(pair);
          if (failed != 0 && error == 0) {
            error = failed > 0 ? failed : EIO;
          }
        }
        // Of a port, as the driver cannot answer that by itself.
        ibv_port_attr attributes{};
        const int silent = library.device.query_port(context, 1, &attributes);
        if (silent != 0 && error == 0) {
          error = silent > 0 ? silent : EIO;
        }
        destruction->result.store(error, std::memory_order_release);
      });
  return destruction;
}

}  // namespace nccl_ha::fabric::verbs
