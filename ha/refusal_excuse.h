// Whether a path that ended because memory was not known is worth another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nccl_ha::ha {

/// A wrong key, or memory that was taken back too early, is wrong on every path.  But a device that
/// is removed in order says the same for a moment: the kernel ends memory regions before queue
/// pairs, as they are younger (Linux, uverbs_destroy_ufile_hw()).  What was refused goes again over
/// the next path, so that a wrong key is refused there too; a device that is removed has no next
/// path.  A relayed path that ends in datagrams says it too, of the first memory of a GPU; the next
/// one ends otherwise.  So the first refusal is excused, and with it those of all paths that there
/// were by then: one cause may meet several.  On a path that was made since it is final, unless a
/// transfer was done meanwhile: then it is another cause.  A transfer whose key is wrong is never
/// done, and those beside it are few, so that it comes to an end.  One thread.
class RefusalExcuse {
 public:
  /// The path of `lane` ended so.  `epochs`: of the paths of all lanes, each of which has another
  /// one than the path before it; `done`: transfers, of which only differences mean something.
  /// False: that is final.
  [[nodiscard]] bool excuse(size_t lane, std::span<const uint32_t> epochs, uint64_t done) {
    if (known_.empty() || done != done_) {
      known_.assign(epochs.begin(), epochs.end());
      done_ = done;
      return true;
    }
    return lane < known_.size() && known_[lane] == epochs[lane];
  }

 private:
  std::vector<uint32_t> known_;  ///< epochs at the last one that was excused by itself
  uint64_t done_ = 0;
};

}  // namespace nccl_ha::ha
