// NCCL's data calls: isend, irecv, test, registration.  They fill a request slot, ring the doorbell
// or read a state; in inline mode test() turns the engine as well.
#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "plugin/edge.h"
#include "plugin/net.h"
#include "plugin/process.h"
#include "plugin/profiler.h"
#include "runtime/base/log.h"

namespace nccl_ha::plugin {
namespace {

abi::NcclResult failed(const Channel& channel) { return to_nccl(channel.failure().code); }

/// What regMr() returned; null stands for no memory (a message of no bytes).
const fabric::Registration& registration_of(void* mhandle) {
  static constexpr fabric::Registration none;
  return mhandle == nullptr ? none : *static_cast<const fabric::Registration*>(mhandle);
}

/// That of a connection which knows the memory by other keys, until the thread's next call; null,
/// and `why` is what the caller answers: success where the device takes long, so that NCCL asks
/// again.
[[gnu::noinline, gnu::cold]] const fabric::Registration* adapt(
    const Channel& channel, const fabric::Registration& registration, abi::NcclResult& why) {
  thread_local fabric::Registration adapted;
  auto made = Process::instance().provider().adapt(registration, channel.attachment());
  if (made) {
    adapted = *made;
    return &adapted;
  }
  if (made.error().code == Errc::timed_out) {
    NHA_LOG_WARN_LIMITED("memory of before a device came back: {}", made.error().message());
    why = abi::NcclResult::success;
  } else {
    why = report(made.error());
  }
  return nullptr;
}

/// What regMr() returned, as this connection knows it; null: see adapt().
[[gnu::always_inline]] inline const fabric::Registration* known_to(const Channel& channel,
                                                                   void* mhandle,
                                                                   abi::NcclResult& why) {
  const fabric::Registration& registration = registration_of(mhandle);
  return fabric::Provider::fits(registration, channel.attachment())
             ? &registration
             : adapt(channel, registration, why);
}

Comm* any_comm(void* comm) {
  auto* base = static_cast<Comm*>(comm);
  if (comm == nullptr || (base->kind != CommKind::send && base->kind != CommKind::receive)) {
    NHA_LOG_ERROR("memory registration: called with a null, closed or listening communicator");
    return nullptr;
  }
  return base;
}

const Channel& channel_of(Comm* comm) {
  return comm->kind == CommKind::send
             ? static_cast<const Channel&>(static_cast<SendComm*>(comm)->endpoint->channel)
             : static_cast<const Channel&>(static_cast<ReceiveComm*>(comm)->endpoint->channel);
}

abi::NcclResult keep(Comm* comm, Result<fabric::Registration> registration, void** mhandle) {
  if (!registration) {
    return report(registration.error());
  }
  const Channel& channel = channel_of(comm);
  if (channel.devices().count > 1) {
    Process::instance().provider().register_on_rails(channel.devices(), channel.domain(),
                                                     *registration);
  }
  std::lock_guard lock(comm->regions_mutex);
  comm->regions.push_back(*registration);
  *mhandle = &comm->regions.back();
  return abi::NcclResult::success;
}

/// For the flight recorder.  A flush is of no group: it is named by its slot.
[[gnu::always_inline]] inline uint64_t group_of(const Request& request) {
  if (request.is_send) {
    return static_cast<const SendRequest&>(request).group;
  }
  const auto& receive = static_cast<const ReceiveRequest&>(request);
  return receive.is_flush ? request.index : receive.group;
}
[[gnu::always_inline]] inline uint64_t described(const Request& request) {
  if (request.is_send) {
    return trace_request(TraceRequest::send, request.bytes[0],
                         static_cast<const SendRequest&>(request).position);
  }
  const auto& receive = static_cast<const ReceiveRequest&>(request);
  return receive.is_flush ? trace_request(TraceRequest::flush, 0, 0)
                          : trace_request(TraceRequest::receive, request.bytes[0], 0);
}

/// What NCCL gives isend().
struct Message {
  void* data;
  size_t size;
  int tag;
  void* mhandle;
  void* phandle;
};

/// A small message leaves whether there is a place for it or not.  False: not this one, or not now.
bool send_eager(const SendComm& send, const CtsEntry* place, const Message& message,
                void** request) {
  SendChannel& channel = send.endpoint->channel;
  if (message.size > channel.eager_bytes() ||
      (message.size != 0 &&
       (message.mhandle == nullptr || !registration_of(message.mhandle).host))) {
    return false;
  }
  SendRequest* slot = channel.submit_eager(place, message.tag, message.data, message.size);
  if (slot == nullptr) {
    return false;
  }
  if (message.phandle != nullptr) {
    start_event(channel, *slot, 0, message.phandle, message.size, message.tag);
  }
  send.endpoint->driver.note_asked(slot->group, described(*slot));
  *request = slot;
  send.endpoint->driver.submit();
  return true;
}

}  // namespace

abi::NcclResult net_reg_mr(void* comm, void* data, size_t size, int type, void** mhandle) noexcept {
  *mhandle = nullptr;
  return guarded("regMr", [&] {
    Comm* base = any_comm(comm);
    if (base == nullptr) {
      return abi::NcclResult::internal_error;
    }
    const Channel& channel = channel_of(base);
    if (type != abi::ptr_host && type != abi::ptr_cuda) {
      return report(
          fail(Errc::invalid_usage,
               fmt::format("regMr: memory type {} is none that this plugin announced", type)));
    }
    return keep(base,
                Process::instance().provider().add_memory(channel.attachment(), channel.domain(),
                                                          data, size, type == abi::ptr_cuda),
                mhandle);
  });
}

abi::NcclResult net_reg_mr_dmabuf(void* comm, void* data, size_t size, int type, uint64_t offset,
                                  int fd, void** mhandle) noexcept {
  *mhandle = nullptr;
  return guarded("regMrDmaBuf", [&] {
    (void)type;  // the descriptor says what it is
    Comm* base = any_comm(comm);
    if (base == nullptr) {
      return abi::NcclResult::internal_error;
    }
    const Channel& channel = channel_of(base);
    return keep(base,
                Process::instance().provider().add_dmabuf(channel.attachment(), channel.domain(),
                                                          data, size, offset, fd),
                mhandle);
  });
}

abi::NcclResult net_dereg_mr(void* comm, void* mhandle) noexcept {
  return guarded("deregMr", [&] {
    Comm* base = any_comm(comm);
    if (base == nullptr) {
      return abi::NcclResult::internal_error;
    }
    if (mhandle == nullptr) {
      return abi::NcclResult::success;
    }
    fabric::Registration registration;
    {
      std::lock_guard lock(base->regions_mutex);
      const auto found =
          std::find_if(base->regions.begin(), base->regions.end(),
                       [&](const fabric::Registration& known) { return &known == mhandle; });
      if (found == base->regions.end()) {
        return report(fail(Errc::invalid_argument,
                           "deregMr: this memory is not registered on this connection"));
      }
      registration = *found;
      base->regions.erase(found);
    }
    auto removed = Process::instance().provider().remove_memory(registration);
    return removed ? abi::NcclResult::success : report(removed.error());
  });
}

[[gnu::hot]] abi::NcclResult net_isend(void* comm, void* data, size_t size, int tag, void* mhandle,
                                       void* phandle, void** request) noexcept {
  *request = nullptr;
  if (called_in_fork("isend")) [[unlikely]] {
    return abi::NcclResult::invalid_usage;
  }
  auto* send = static_cast<SendComm*>(comm);
  if (comm == nullptr || send->kind != CommKind::send) [[unlikely]] {
    return abi::NcclResult::internal_error;
  }
  Driver& driver = send->endpoint->driver;
  SendChannel& channel = send->endpoint->channel;
  if (channel.phase() != Phase::ready) [[unlikely]] {
    return failed(channel);
  }
  const CtsEntry* place = channel.match(tag);
  if (place == nullptr) {
    driver.wait_for_cts([&] { return channel.match(tag) != nullptr; });
    place = channel.match(tag);
    if (place == nullptr) {
      // The peer has not posted yet: NCCL asks again.
      static_cast<void>(send_eager(*send, nullptr, {data, size, tag, mhandle, phandle}, request));
      return abi::NcclResult::success;
    }
  }
  if (size > place->size) [[unlikely]] {
    NHA_LOG_WARN(
        "isend of {} bytes (tag {}) meets a receive of {}: the two ranks disagree about the size",
        size, tag, place->size);
    driver.report_oversize();
    return abi::NcclResult::invalid_usage;
  }
  if (mhandle == nullptr && size != 0) [[unlikely]] {
    NHA_LOG_WARN("isend: the buffer was not registered (null memory handle)");
    return abi::NcclResult::invalid_argument;
  }
  if (size <= channel.eager_bytes() &&
      send_eager(*send, place, {data, size, tag, mhandle, phandle}, request)) {
    return abi::NcclResult::success;
  }
  abi::NcclResult why{};
  const fabric::Registration* registration = known_to(channel, mhandle, why);
  if (registration == nullptr) [[unlikely]] {
    driver.turn();
    return why;
  }
  SendRequest* slot =
      channel.submit(*place, data, static_cast<uint32_t>(size), registration->local_key,
                     registration->host, registration->rail_local_keys);
  if (slot == nullptr) [[unlikely]] {
    driver.turn();
    return abi::NcclResult::success;
  }
  if (phandle != nullptr) {
    start_event(channel, *slot, 0, phandle, size, tag);
  }
  driver.note_asked(slot->group, described(*slot));
  *request = slot;
  driver.submit();  // inline: on its way before the caller does something else
  channel.prefetch_next();
  return abi::NcclResult::success;
}

[[gnu::hot]] abi::NcclResult net_irecv(void* comm, int n, void** data, const size_t* sizes,
                                       const int* tags, void** mhandles, void** phandles,
                                       bool may_be_polled, void** request) noexcept {
  *request = nullptr;
  if (called_in_fork("irecv")) [[unlikely]] {
    return abi::NcclResult::invalid_usage;
  }
  auto* receive = static_cast<ReceiveComm*>(comm);
  if (comm == nullptr || receive->kind != CommKind::receive) [[unlikely]] {
    return abi::NcclResult::internal_error;
  }
  if (n < 1 || n > static_cast<int>(group_max)) [[unlikely]] {
    NHA_LOG_WARN("irecv: {} buffers in one receive; 1 to {} are possible", n, group_max);
    return abi::NcclResult::internal_error;
  }
  Driver& driver = receive->endpoint->driver;
  ReceiveChannel& channel = receive->endpoint->channel;
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
    driver.turn();
    return abi::NcclResult::success;
  }
  slot->count = static_cast<uint8_t>(n);
  slot->polled = may_be_polled;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    abi::NcclResult why{};
    const fabric::Registration* registration = known_to(channel, mhandles[i], why);
    if (registration == nullptr) [[unlikely]] {
      channel.release(*slot);
      driver.turn();
      return why;
    }
    slot->buffers[i] = {static_cast<std::byte*>(data[i]), static_cast<uint32_t>(sizes[i]),
                        registration->remote_key, tags[i], registration->rail_remote_keys};
  }
  driver.note_asked(channel.next_group(),
                    trace_request(TraceRequest::receive, slot->buffers[0].size, 0));
  channel.submit(*slot);
  for (size_t i = 0; phandles != nullptr && i < static_cast<size_t>(n); ++i) {
    if (phandles[i] != nullptr) {
      start_event(channel, *slot, i, phandles[i], sizes[i], tags[i]);
    }
  }
  driver.submit();
  *request = slot;
  return abi::NcclResult::success;
}

abi::NcclResult net_iflush(void* comm, int n, void** data, const int* sizes, void** mhandles,
                           void** request) noexcept {
  *request = nullptr;
  if (called_in_fork("iflush")) [[unlikely]] {
    return abi::NcclResult::invalid_usage;
  }
  auto* receive = static_cast<ReceiveComm*>(comm);
  if (comm == nullptr || receive->kind != CommKind::receive) [[unlikely]] {
    return abi::NcclResult::internal_error;
  }
  Driver& driver = receive->endpoint->driver;
  ReceiveChannel& channel = receive->endpoint->channel;
  // One read pushes everything that the NIC wrote before it, so any buffer that got bytes will do.
  int last = -1;
  for (int i = 0; i < n; ++i) {
    const fabric::Registration& registration = registration_of(mhandles[i]);
    const bool needed = !registration.host || Process::instance().config().ib_flush != 0;
    if (sizes[i] > 0 && registration.placed_by_nic && needed) {
      last = i;
    }
  }
  if (last < 0) {
    return abi::NcclResult::success;  // host memory: what has been received is visible
  }
  if (channel.phase() != Phase::ready) [[unlikely]] {
    return failed(channel);
  }
  ReceiveRequest* slot = channel.acquire_flush();
  if (slot == nullptr) [[unlikely]] {
    NHA_LOG_ERROR("iflush: more than {} flushes at once", flushes_max);
    return abi::NcclResult::internal_error;
  }
  abi::NcclResult why{};
  const fabric::Registration* registration = known_to(channel, mhandles[last], why);
  if (registration == nullptr) [[unlikely]] {
    channel.release(*slot);
    // irecv() has asked the same and had an answer.  No flush would pass for one that is over.
    return why == abi::NcclResult::success ? abi::NcclResult::system_error : why;
  }
  slot->buffers[0] = {static_cast<std::byte*>(data[last]), 0, registration->remote_key, 0,
                      registration->rail_remote_keys};
  driver.note_asked(group_of(*slot), described(*slot));
  channel.submit(*slot);
  driver.submit();
  *request = slot;
  return abi::NcclResult::success;
}

[[gnu::hot]] abi::NcclResult net_test(void* request, int* done, int* sizes) noexcept {
  *done = 0;
  if (called_in_fork("test")) [[unlikely]] {
    return abi::NcclResult::invalid_usage;
  }
  auto* base = static_cast<Request*>(request);
  if (base == nullptr) [[unlikely]] {
    NHA_LOG_ERROR("test: called with a null request");
    return abi::NcclResult::internal_error;
  }
  Channel& channel = *base->channel;
  RequestState state = base->state.load(std::memory_order_acquire);
  if (state == RequestState::pending) {
    if (channel.phase() == Phase::ready) [[likely]] {
      base->driver->wait_for(base->state);
      state = base->state.load(std::memory_order_acquire);
      if (state == RequestState::pending) {
        return abi::NcclResult::success;
      }
    } else {
      // What was done before the failure counts as done.
      state = base->state.load(std::memory_order_acquire);
      if (state == RequestState::pending) {
        if (channel.watcher != nullptr) {
          channel.watcher->ended(*base, false);
        }
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
  base->driver->note_noticed(group_of(*base), described(*base));
  if (channel.watcher != nullptr) [[unlikely]] {
    channel.watcher->ended(*base, true);
  }
  if (base->is_send) {
    static_cast<SendChannel&>(channel).release(static_cast<SendRequest&>(*base));
  } else {
    static_cast<ReceiveChannel&>(channel).release(static_cast<ReceiveRequest&>(*base));
  }
  return abi::NcclResult::success;
}

}  // namespace nccl_ha::plugin
