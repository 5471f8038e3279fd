// What the hosts of one job have in common with nothing set: NCCL gives every rank of a
// communicator the same random number, from which each of them makes the same key.
//
// The number has 64 bits and is in the log of NCCL_DEBUG=INFO: a key of it keeps other jobs and
// hosts apart, as long as they do not read that log.  It is no secret of the cluster's.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/key_ring.h"

namespace nccl_ha::relay {

/// What a key is called where it is not told: by all who have it the same, and no help to find it.
uint32_t name_of_key(const KeyRing::Key& key);

/// Of the communicators of a process, and of those of other processes of its host for which it
/// speaks.  Any thread.
class JobKeys {
 public:
  /// Of one process; of more the first half, of which the whole job's is likely one, and the
  /// newest.
  static constexpr size_t own_max = 16;
  /// Of the processes of one user; of more the newest.
  static constexpr size_t lent_max = 64;
  static constexpr size_t users_max = 64;  ///< of more the first ones
  /// What is not lent again for so long is forgotten.
  static constexpr Duration lent_for = std::chrono::seconds(60);

  /// The key of a communicator: its number on the wire, never 0, and itself.
  static std::pair<uint32_t, KeyRing::Key> key_of(uint64_t comm_id);

  /// This process is in that communicator.  0: NCCL told none.
  void add(uint64_t comm_id);
  /// What `user` has in common with other hosts.  A number that somebody has stays that one's.
  void lend(uint32_t user, const KeyRing& keys, Instant now);
  /// Of this process's own communicators.
  KeyRing own() const;
  /// Lent by that user, for a process of the same one; with `own`, this process's own as well.
  KeyRing of_user(uint32_t user, bool own) const;
  /// All of them.  Another one when that changes.
  std::shared_ptr<const KeyRing> current() const;

  /// Whoever shows no key is heard and served as well: beside a relay node, or as one, of a cluster
  /// without a key.
  void set_open(bool open) { open_.store(open, std::memory_order_relaxed); }
  bool open() const { return open_.load(std::memory_order_relaxed); }

 private:
  struct Lent {
    KeyRing::Key key{};
    Instant last{};
  };
  void publish();

  mutable std::mutex mutex_;
  std::vector<std::pair<uint32_t, KeyRing::Key>> own_;  ///< the newest last
  std::map<uint32_t, std::map<uint32_t, Lent>> lent_;   ///< by user, by number
  std::shared_ptr<const KeyRing> current_ = std::make_shared<const KeyRing>();
  std::atomic<bool> open_{false};
};

}  // namespace nccl_ha::relay
