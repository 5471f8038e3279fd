// What is learned of a NIC or a host in between anywhere in the process, for all who have paths
// over it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/fabric/failure_domain.h"

namespace nccl_ha::fabric {

/// About whatever fails as one.
struct NicNotice {
  enum class Kind : uint8_t {
    down,     ///< they carry nothing now
    up,       ///< they may carry again
    suspect,  ///< a path through all of these to host `peer` was silent for too long
    renewed,  ///< interfaces have other addresses, or have come: of no domain in particular
  };
  Kind kind = Kind::suspect;
  FailureDomains domains;
  std::string peer;
};

/// Any thread.  Readers are as many as workers, notices are rare.
class NicBoard {
 public:
  class Reader {
   public:
    /// From any thread, under the board's lock: there is something to take.  Must not call it.
    virtual void on_notice() = 0;

   protected:
    ~Reader() = default;
  };

  /// Everything that is posted from now on.  True: it is the only one.
  bool enter(Reader* reader);
  /// on_notice() is not running any more when it returns, and does not run again.
  void unsubscribe(Reader* reader);
  /// To all readers but `from`.
  void post(const NicNotice& notice, const Reader* from = nullptr);
  std::vector<NicNotice> take(Reader* reader);

  /// The kernel has told of addresses or links that came, went or changed: whoever keeps the list
  /// of interfaces looks again.
  void ask_renewal();
  /// By what; null: by nothing any more.
  void renew_by(std::function<void()> renew);

 private:
  /// A reader who does not read loses the oldest hints, which are no help by then; that interfaces
  /// were renewed it hears, once for several times.
  static constexpr size_t kept_max = 64;
  struct Subscription {
    Reader* reader = nullptr;
    std::deque<NicNotice> notices;
  };
  std::mutex mutex_;
  std::vector<Subscription> subscriptions_;
  std::function<void()> renew_;
};

}  // namespace nccl_ha::fabric
