// A queue pair that remembers what it is given.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nccl_ha::test {

class FakeQueuePair : public ibv_qp {
 public:
  FakeQueuePair() : ibv_qp{} {
    context = &context_;
    context_.ops.post_send = [](ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
      auto& self = *static_cast<FakeQueuePair*>(pair);
      return self.take(request, bad, self.sends);
    };
    context_.ops.post_recv = [](ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
      auto& self = *static_cast<FakeQueuePair*>(pair);
      return self.take(request, bad, self.receives);
    };
  }
  FakeQueuePair(const FakeQueuePair&) = delete;
  FakeQueuePair& operator=(const FakeQueuePair&) = delete;

  /// Their `next` and `sg_list` mean nothing any more.
  std::vector<ibv_send_wr> sends;
  std::vector<ibv_recv_wr> receives;
  size_t doorbells = 0;
  size_t room = SIZE_MAX;  ///< so many more are taken

  bool signaled(size_t send) const { return (sends[send].send_flags & IBV_SEND_SIGNALED) != 0; }
  bool inlined(size_t send) const { return (sends[send].send_flags & IBV_SEND_INLINE) != 0; }

 private:
  template <class Request>
  int take(Request* request, Request** bad, std::vector<Request>& into) {
    ++doorbells;
    for (; request != nullptr; request = request->next, --room) {
      if (room == 0) {
        *bad = request;
        return ENOMEM;
      }
      into.push_back(*request);
    }
    return 0;
  }

  ibv_context context_{};
};

}  // namespace nccl_ha::test
