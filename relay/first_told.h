// Peers of whom other hosts have told before they were heard.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ip_address.h"

namespace nccl_ha::relay {

/// A peer is one of its addresses, of which a job has some for each host.  Any thread.
class FirstTold {
 public:
  /// Two hosts that a cable joins hear each other within that time, once both have begun.
  static constexpr Duration patience = std::chrono::milliseconds(200);

  /// Who relays to the peer is known for a shorter time than that: its own cable may come.
  bool is_news(const std::vector<IpAddress>& addresses, Instant now) {
    const std::lock_guard lock(mutex_);
    Instant first = now;
    for (const IpAddress& one : addresses) {
      first = std::min(first, since_.try_emplace(one.text(), now).first->second);
    }
    return now - first < patience;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Instant> since_;  ///< by address
};

}  // namespace nccl_ha::relay
