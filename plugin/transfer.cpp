// NCCL's data calls: isend, irecv, test, registration.  They fill a request slot, ring the doorbell
// or read a state; in inline mode test() turns the engine as well.
#include <fmt/format.h>

#include <climits>

#include "plugin/edge.h"
#include "plugin/net.h"
#include "plugin/process.h"
#include "runtime/log.h"

namespace nccl_ha::plugin {
namespace {

abi::NcclResult failed(const Channel& channel) { return to_nccl(channel.failure().code); }

uint32_t key_of(void* mhandle) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(mhandle));
}

Comm* any_comm(void* comm) {
  auto* base = static_cast<Comm*>(comm);
  if (comm == nullptr || (base->kind != CommKind::send && base->kind != CommKind::receive)) {
    NHA_LOG_ERROR("memory registration: called with a null, closed or listening communicator");
    return nullptr;
  }
  return base;
}

uint64_t domain_of(Comm* comm) {
  return comm->kind == CommKind::send ? static_cast<SendComm*>(comm)->channel->domain()
                                      : static_cast<ReceiveComm*>(comm)->channel->domain();
}

}  // namespace

abi::NcclResult net_reg_mr(void* comm, void* data, size_t size, int type, void** mhandle) noexcept {
  return guarded([&] {
    *mhandle = nullptr;
    Comm* base = any_comm(comm);
    if (base == nullptr) {
      return abi::NcclResult::internal_error;
    }
    if (type != abi::ptr_host) {
      return report(fail(Errc::invalid_usage,
                         fmt::format("regMr: memory type {} is not supported by the datagram "
                                     "fabric, which announced host memory only",
                                     type)));
    }
    auto key = Process::instance().provider().memory().add(domain_of(base), data, size);
    if (!key) {
      return report(key.error());
    }
    std::lock_guard lock(base->regions_mutex);
    base->regions.push_back(*key);
    *mhandle = reinterpret_cast<void*>(uintptr_t{*key});
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_reg_mr_dmabuf(void* comm, void* data, size_t size, int type, uint64_t offset,
                                  int fd, void** mhandle) noexcept {
  return guarded([&] {
    (void)comm;
    (void)data;
    (void)size;
    (void)type;
    (void)offset;
    (void)fd;
    *mhandle = nullptr;
    return report(fail(Errc::invalid_usage,
                       "regMrDmaBuf: the datagram fabric did not announce DMA-BUF support"));
  });
}

abi::NcclResult net_dereg_mr(void* comm, void* mhandle) noexcept {
  return guarded([&] {
    Comm* base = any_comm(comm);
    if (base == nullptr) {
      return abi::NcclResult::internal_error;
    }
    if (mhandle == nullptr) {
      return abi::NcclResult::success;
    }
    {
      std::lock_guard lock(base->regions_mutex);
      if (std::erase(base->regions, key_of(mhandle)) == 0) {
        return report(fail(Errc::invalid_argument,
                           "deregMr: this memory is not registered on this connection"));
      }
    }
    auto removed = Process::instance().provider().memory().remove(key_of(mhandle));
    return removed ? abi::NcclResult::success : report(removed.error());
  });
}

abi::NcclResult net_isend(void* comm, void* data, size_t size, int tag, void* mhandle,
                          void* phandle, void** request) noexcept {
  (void)phandle;
  *request = nullptr;
  auto* send = static_cast<SendComm*>(comm);
  if (comm == nullptr || send->kind != CommKind::send) [[unlikely]] {
    return abi::NcclResult::internal_error;
  }
  SendChannel& channel = *send->channel;
  if (channel.phase() != Phase::ready) [[unlikely]] {
    return failed(channel);
  }
  const CtsEntry* place = channel.match(tag);
  if (place == nullptr) {
    channel.assist();
    place = channel.match(tag);
    if (place == nullptr) {
      return abi::NcclResult::success;  // the peer has not posted yet: NCCL asks again
    }
  }
  if (size > place->size) [[unlikely]] {
    NHA_LOG_WARN(
        "isend of {} bytes (tag {}) meets a receive of {}: the two ranks disagree about the size",
        size, tag, place->size);
    while (!channel.tell(ConnectionMessage::oversize)) {
      channel.assist();
    }
    channel.assist();
    return abi::NcclResult::invalid_usage;
  }
  if (mhandle == nullptr && size != 0) [[unlikely]] {
    NHA_LOG_WARN("isend: the buffer was not registered (null memory handle)");
    return abi::NcclResult::invalid_argument;
  }
  *request = channel.submit(*place, data, static_cast<uint32_t>(size), key_of(mhandle));
  return abi::NcclResult::success;
}

abi::NcclResult net_irecv(void* comm, int n, void** data, const size_t* sizes, const int* tags,
                          void** mhandles, void** phandles, bool may_be_polled,
                          void** request) noexcept {
  (void)phandles;
  *request = nullptr;
  auto* receive = static_cast<ReceiveComm*>(comm);
  if (comm == nullptr || receive->kind != CommKind::receive) [[unlikely]] {
    return abi::NcclResult::internal_error;
  }
  if (n < 1 || n > static_cast<int>(group_max)) [[unlikely]] {
    NHA_LOG_WARN("irecv: {} buffers in one receive; 1 to {} are possible", n, group_max);
    return abi::NcclResult::internal_error;
  }
  ReceiveChannel& channel = *receive->channel;
  if (channel.phase() != Phase::ready) [[unlikely]] {
    return failed(channel);
  }
  for (int i = 0; i < n; ++i) {
    if (sizes[i] > UINT32_MAX || (mhandles[i] == nullptr && sizes[i] != 0)) [[unlikely]] {
      NHA_LOG_WARN("irecv: buffer {} of {} bytes is too large or not registered", i, sizes[i]);
      return abi::NcclResult::invalid_argument;
    }
  }
  ReceiveRequest* slot = channel.acquire();
  if (slot == nullptr) {
    channel.assist();
    return abi::NcclResult::success;
  }
  slot->count = static_cast<uint8_t>(n);
  slot->polled = may_be_polled;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    slot->buffers[i] = {static_cast<std::byte*>(data[i]), static_cast<uint32_t>(sizes[i]),
                        key_of(mhandles[i]), tags[i]};
  }
  channel.submit(*slot);
  *request = slot;
  return abi::NcclResult::success;
}

abi::NcclResult net_iflush(void* comm, int n, void** data, const int* sizes, void** mhandles,
                           void** request) noexcept {
  (void)comm;
  (void)n;
  (void)data;
  (void)sizes;
  (void)mhandles;
  *request = nullptr;  // host memory: what has been received is visible
  return abi::NcclResult::success;
}

abi::NcclResult net_test(void* request, int* done, int* sizes) noexcept {
  *done = 0;
  auto* base = static_cast<Request*>(request);
  if (base == nullptr) [[unlikely]] {
    NHA_LOG_ERROR("test: called with a null request");
    return abi::NcclResult::internal_error;
  }
  Channel& channel = *base->channel;
  RequestState state = base->state.load(std::memory_order_acquire);
  if (state == RequestState::pending) {
    if (channel.phase() == Phase::ready) [[likely]] {
      channel.ring_again();
      channel.assist();
      state = base->state.load(std::memory_order_acquire);
      if (state == RequestState::pending) {
        return abi::NcclResult::success;
      }
    } else {
      // What was done before the failure counts as done.
      state = base->state.load(std::memory_order_acquire);
      if (state == RequestState::pending) {
        return failed(channel);
      }
    }
  }
  if (state == RequestState::free) [[unlikely]] {
    NHA_LOG_ERROR("test: called on a request that was reported done before");
    return abi::NcclResult::internal_error;
  }
  if (sizes != nullptr) {
    for (size_t i = 0; i < base->count; ++i) {
      sizes[i] = base->bytes[i] > INT_MAX ? INT_MAX : static_cast<int>(base->bytes[i]);
    }
  }
  *done = 1;
  if (base->is_send) {
    static_cast<SendChannel&>(channel).release(static_cast<SendRequest&>(*base));
  } else {
    static_cast<ReceiveChannel&>(channel).release(static_cast<ReceiveRequest&>(*base));
  }
  return abi::NcclResult::success;
}

}  // namespace nccl_ha::plugin
