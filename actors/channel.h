// What both sides of a connection share with the thread that calls NCCL's entry points: data, which
// calls nobody.
//
// The caller fills a request slot and publishes its index in a single-producer ring; the actor
// works and publishes states.  Each field has one writer; what both touch is atomic and on its own
// line. What makes the actor look is the driver's business (actors/driver.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "actors/request_watcher.h"
#include "runtime/base/result.h"
#include "runtime/fabric/provider.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha {

/// Of a connection, as its caller sees it.
enum class Phase : uint32_t { connecting, ready, failed };

/// The side-independent part.
class Channel {
 public:
  /// `counters`, `side`: where it is counted, and as what until more is known.
  /// `devices`: the first is that of `at`.
  Channel(uint64_t domain, fabric::Attachment at, const CounterPlace& counters, const char* side,
          const fabric::RailDevices& devices)
      : domain_(domain), attachment_(at), devices_(devices), counters_(counters, side) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  uint64_t domain() const { return domain_; }
  /// Where memory for this connection is to be registered.  As the next one final once phase() is
  /// ready.
  const fabric::Attachment& attachment() const { return attachment_; }
  /// The rails over which it may be read and written besides.
  const fabric::RailDevices& devices() const { return devices_; }

  Phase phase() const { return phase_.load(std::memory_order_acquire); }
  /// Valid once phase() is failed; never changes afterwards.
  const Error& failure() const { return failure_; }
  /// The peer accepted the connection, whatever happened since.  Valid once phase() is not
  /// connecting.
  bool established() const { return established_; }

  // Actor's side.
  /// Before it is ready: the connection's stream leads from there.
  void move_to(fabric::Attachment at, const fabric::RailDevices& devices) {
    attachment_ = at;
    devices_ = devices;
  }
  void set_established() {
    if (phase_.load(std::memory_order_relaxed) == Phase::connecting) {
      established_ = true;
    }
  }
  void set_ready() {
    set_established();
    Phase expected = Phase::connecting;
    phase_.compare_exchange_strong(expected, Phase::ready, std::memory_order_acq_rel);
  }
  /// The first failure stays.
  void set_failed(const Error& error) {
    if (phase_.load(std::memory_order_relaxed) != Phase::failed) {
      try {
        failure_ = error;
      } catch (const std::bad_alloc&) {
        failure_.code = error.code;  // without its text
      }
      phase_.store(Phase::failed, std::memory_order_release);
    }
  }

  /// The actor writes them.
  ConnectionCounters& counters() { return *counters_; }
  const ConnectionCounters& counters() const { return *counters_; }
  CounterBlock<ConnectionCounters>& counter_block() { return counters_; }

  std::unique_ptr<RequestWatcher> watcher;  ///< the caller's; null: nobody wants to know

 protected:
  ~Channel() = default;

 private:
  const uint64_t domain_;
  fabric::Attachment attachment_;
  fabric::RailDevices devices_;
  CounterBlock<ConnectionCounters> counters_;
  alignas(64) std::atomic<Phase> phase_{Phase::connecting};
  bool established_ = false;  ///< written before phase_
  Error failure_{};
};

}  // namespace nccl_ha
