// What comes in place of an RDMA device that is gone: the same NIC after a reset or a removal, as
// another device of the kernel's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/fabric/verbs/conductor.h"
#include "runtime/fabric/verbs/device.h"

namespace nccl_ha::fabric::verbs {

/// By what a NIC is known again.
struct NicIdentity {
  std::string name;      ///< of its device, which may be another one afterwards
  uint64_t guid = 0;     ///< of its node; 0: nobody has set one
  std::string pci_path;  ///< empty for a software device
};
NicIdentity identity_of(const UsablePort& port);

/// Which of the devices that there are is that NIC: the one with its GUID, of several the one in
/// its slot; where there is no GUID, the one with its name in its slot.  Pure.
std::optional<size_t> successor_of(const NicIdentity& before, std::span<const NicIdentity> now);

/// Looks for a successor, and opens it, away from its caller's thread.  A device that hangs while
/// it is opened is not waited for.  One thread.
class SuccessorSearch {
 public:
  /// Blocks as long as devices take.  Nothing: there is none yet.
  using Open = std::function<std::vector<UsablePort>()>;
  SuccessorSearch(const Library& library, Open open);
  ~SuccessorSearch();
  SuccessorSearch(const SuccessorSearch&) = delete;
  SuccessorSearch& operator=(const SuccessorSearch&) = delete;

  /// What the look that was begun before has found, if that is over; where none is under way,
  /// begins one.
  std::vector<UsablePort> look();
  bool under_way() const { return look_ != nullptr; }

 private:
  struct Look {
    std::vector<UsablePort> found;
    Answer over;
  };
  const Open open_;
  std::unique_ptr<Conductor> conductor_;  ///< null: a simulated device takes no time
  std::shared_ptr<Look> look_;
};

}  // namespace nccl_ha::fabric::verbs
