#include "plugin/profiler.h"

#include <array>
#include <atomic>
#include <memory>
#include <new>

#include "plugin/profiler_event.h"
#include "runtime/base/log.h"

namespace nccl_ha::plugin {
namespace {

std::atomic<abi::ProfilerCallback> profiler_in_use{nullptr};
std::atomic<bool> profilers_differ{false};

/// The events of a connection's open requests.
class TransferEvents final : public RequestWatcher {
 public:
  explicit TransferEvents(abi::ProfilerCallback callback) : callback_(callback) {}

  void keep(const Request& request, void* handle, const abi::TransferV1& transfer) {
    place(request, transfer.position) = {handle, transfer};
  }

  void ended(const Request& request, bool done) override {
    if (!request.is_send && static_cast<const ReceiveRequest&>(request).is_flush) {
      return;
    }
    for (size_t i = 0; i < request.count; ++i) {
      Event& event = place(request, i);
      if (event.handle == nullptr) {
        continue;
      }
      event.transfer.state = done ? abi::TransferState::done : abi::TransferState::failed;
      event.transfer.bytes = done ? request.bytes[i] : 0;
      event.transfer.failovers = failovers_of(*request.channel);
      static_cast<void>(callback_(&event.handle,
                                  static_cast<int>(abi::ProfilerEvent::update_and_stop), nullptr,
                                  abi::profiler_id, &event.transfer));
      event.handle = nullptr;
    }
  }

  static uint32_t failovers_of(const Channel& channel) {
    return static_cast<uint32_t>(channel.counters().paths_down.get());
  }

 private:
  struct Event {
    void* handle = nullptr;
    abi::TransferV1 transfer{};
  };

  static_assert(sends_max == receives_max * group_max);
  Event& place(const Request& request, size_t position) {
    return events_[request.is_send ? request.index : request.index * group_max + position];
  }

  const abi::ProfilerCallback callback_;
  std::array<Event, sends_max> events_{};
};

}  // namespace

void use_profiler(abi::ProfilerCallback callback) {
  abi::ProfilerCallback known = nullptr;
  if (callback == nullptr || profiler_in_use.compare_exchange_strong(known, callback) ||
      known == callback) {
    return;
  }
  if (!profilers_differ.exchange(true)) {
    NHA_LOG_INFO("two copies of NCCL use this library: profilers hear nothing of transfers");
  }
}

void forget_profiler() {
  profiler_in_use.store(nullptr);
  profilers_differ.store(false);
}

void start_event(Channel& channel, const Request& request, size_t position, void* phandle,
                 uint64_t bytes, int tag) noexcept {
  const abi::ProfilerCallback callback = profiler_in_use.load(std::memory_order_relaxed);
  if (callback == nullptr || profilers_differ.load(std::memory_order_relaxed)) {
    return;
  }
  abi::TransferV1 transfer{};
  transfer.kind = request.is_send ? abi::TransferKind::send : abi::TransferKind::receive;
  transfer.fabric = static_cast<abi::TransferFabric>(channel.attachment().kind);
  transfer.position = static_cast<uint8_t>(position);
  transfer.device = static_cast<int32_t>(channel.attachment().device);
  transfer.tag = tag;
  transfer.failovers = TransferEvents::failovers_of(channel);
  transfer.connection = channel.domain();
  transfer.bytes = bytes;
  void* event = nullptr;
  const abi::NcclResult result = callback(&event, static_cast<int>(abi::ProfilerEvent::start),
                                          phandle, abi::profiler_id, &transfer);
  if (result != abi::NcclResult::success || event == nullptr) {
    return;
  }
  if (channel.watcher == nullptr) {
    channel.watcher.reset(new (std::nothrow) TransferEvents(callback));
  }
  if (channel.watcher == nullptr) {
    static_cast<void>(callback(&event, static_cast<int>(abi::ProfilerEvent::stop), nullptr,
                               abi::profiler_id, nullptr));
    return;
  }
  static_cast<TransferEvents&>(*channel.watcher).keep(request, event, transfer);
}

}  // namespace nccl_ha::plugin
