// A file of keys that hosts have in common, as it is now: HA_NCCL_MESH_KEY_FILE says who joins the
// topology and relays, HA_NCCL_KEY_FILE between whom a job's connections are.
//
// Several keys may be there at a time, so that they can be changed while everything runs: the first
// one in the file makes tags, and all are accepted.  On each host the new one is added behind the
// old one; when all have it, it is put before it; when all have that, the old one is removed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/base/key_ring.h"
#include "runtime/base/result.h"

namespace nccl_ha {

/// Any thread.
class KeyFile {
 public:
  /// An error: it cannot be used.
  static Result<std::shared_ptr<KeyFile>> open(const std::string& path);
  /// For tests: no file.
  explicit KeyFile(KeyRing keys) : keys_(std::make_shared<const KeyRing>(std::move(keys))) {}

  std::shared_ptr<const KeyRing> current() const {
    const std::lock_guard lock(mutex_);
    return keys_;
  }
  void set(KeyRing keys);
  /// Reads the file if it has changed.  An error: what it says is no use, and the keys of before
  /// stay.
  Result<void> refresh();

 private:
  struct Version {
    uint64_t inode = 0;
    int64_t size = 0;
    int64_t changed_ns = 0;
    uint32_t mode = 0;  ///< who may read it decides whether it is used
    uint32_t owner = 0;
    bool operator==(const Version&) const = default;
  };
  explicit KeyFile(std::string path) : path_(std::move(path)) {}
  Result<Version> version() const;

  std::string path_;
  mutable std::mutex mutex_;
  std::shared_ptr<const KeyRing> keys_;
  Version version_;  ///< of the file that was judged last, good or bad
};

}  // namespace nccl_ha
