// An RC queue pair of a device, and the states that it is led through.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/options.h"

namespace nccl_ha::fabric::verbs {

class PathEnds;

/// Destroyed before this object, or with it if nobody has tried to.
class QueuePair {
 public:
  /// What RTR and RTS need to know.
  struct Connection {
    ibv_ah_attr route{};
    uint32_t peer = 0;  ///< its number
    uint32_t peer_sequence = 0;
    uint32_t own_sequence = 0;
    ibv_mtu mtu = IBV_MTU_1024;
  };

  explicit QueuePair(const Device& device) : device_(device) {}
  ~QueuePair() {
    if (!tried_) {
      static_cast<void>(destroy());
    }
  }
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  /// Null: there is none, or no more.
  ibv_qp* get() const { return pair_; }

  /// False: errno says why.  `attributes` then say what the device gives.
  bool create(ibv_pd* domain, ibv_qp_init_attr& attributes);
  // These return 0 or an errno value.
  int initialise(uint8_t port, uint16_t pkey_index, unsigned access);
  int stop();  ///< to ERR
  /// To RTR and RTS.  An error of the way to the peer is `ends`' to explain.
  Result<void> make_ready(const Connection& connection, const Options& options,
                          const PathEnds& ends);
  int destroy();  ///< can be asked for again where it did not work

 private:
  const Device& device_;
  ibv_qp* pair_ = nullptr;
  bool tried_ = false;  ///< to destroy it
};

}  // namespace nccl_ha::fabric::verbs
