// What may go wrong in a simulated RDMA device, and when: calls that fail or take long, and the
// freedoms that a device has within the rules of its interface.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"

namespace nccl_ha::sim {

/// Calls of the interface that can fail.  modify_qp counts as one call for each state.
enum class Verb : uint8_t {
  create_channel,
  create_queue,
  create_pair,
  to_init,
  to_ready_to_receive,
  to_ready_to_send,
  to_error,
  destroy_pair,
  register_memory,
  register_dmabuf,
  duplicate,  ///< of a DMA-BUF descriptor, which the kernel refuses
  make_route,
  post_send,
  post_receive,
  poll,  ///< of a completion that is there; the queue cannot be read any more
};
inline constexpr size_t verb_count = static_cast<size_t>(Verb::poll) + 1;
const char* to_text(Verb verb);

/// What a device is.
struct DeviceTraits {
  size_t ports = 1;  ///< each with an address of its own
  /// InfiniBand: ports are found by LID and have no GID.  Else RoCE.
  bool infiniband = false;
  uint32_t message_max = 1U << 30;
  uint32_t mtu = 4096;        ///< 1024, 2048 or 4096
  uint32_t inline_max = 256;  ///< 0: nothing is taken inline
  bool gpu = false;           ///< takes DMA-BUF descriptors
  /// Of its host, Linux before 5.7: a descriptor of events is closed when the kernel has taken the
  /// device away, and channels stay as they are.  Later ones do it the other way round, and the
  /// last event is one more DEVICE_FATAL.
  bool old_kernel = false;
};
DeviceTraits draw_device_traits(Random& random);

/// How a device behaves.  As it stands, nothing ever fails, and everything happens at once.
struct DeviceFaults {
  // --- calls
  std::array<double, verb_count> fails{};  ///< part of the calls, by Verb
  double slow = 0;                         ///< part of the calls that make or change something
  Duration slowest{};                      ///< at most that long; the calling thread waits

  // --- queue pairs in error
  /// After modify_qp to ERR returned, the peer's requests are taken for at most that much longer.
  Duration error_lag{};
  /// Part of the queue pairs that never give back all of their work, until they are destroyed.
  double keeps_work = 0;
  /// Destroying a queue pair takes its completions out of the queue, read or not.
  bool destroy_takes_completions = false;

  // --- memory
  double in_pieces = 0;  ///< part of the packets that become visible piece by piece
  Duration landing{};    ///< what that takes, at most
  /// The pieces in any order, where the owner of the memory allows it; all before the completion
  /// that tells of them.
  bool relaxed = false;
  /// GPU memory: what arrived is visible at the next flush, or after at most that much time.
  Duration gpu_landing{};

  double& operator[](Verb verb) { return fails[static_cast<size_t>(verb)]; }
  double operator[](Verb verb) const { return fails[static_cast<size_t>(verb)]; }
};

/// Faults of a device for one run; about half of all devices have none.  Never of registrations by
/// the owner of the memory, which must hear of them: whoever wants those sets them.
DeviceFaults draw_device_faults(Random& random);

/// Decides for each call of one device.
class VerbFaults {
 public:
  explicit VerbFaults(uint64_t seed) : random_(seed) {}

  DeviceFaults faults;
  /// The `nth` call from now on fails with `error`, an errno value; 1 is the next.
  void force(Verb verb, uint64_t nth, int error);

  /// A call is made: 0, or the errno value with which it fails.
  int call(Verb verb);
  /// How long it takes the calling thread.
  Duration time_of_call();
  uint64_t calls(Verb verb) const { return calls_[static_cast<size_t>(verb)]; }
  uint64_t failures(Verb verb) const { return failures_[static_cast<size_t>(verb)]; }
  Random& random() { return random_; }

 private:
  struct Forced {
    Verb verb{};
    uint64_t call = 0;  ///< as calls_ counts
    int error = 0;
  };
  Random random_;
  std::vector<Forced> forced_;
  std::array<uint64_t, verb_count> calls_{};
  std::array<uint64_t, verb_count> failures_{};
};

}  // namespace nccl_ha::sim
