// Tells the connections of a process at once what one of them, the kernel or a device learns of a
// NIC, or of a host in between.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/engine/context.h"
#include "runtime/engine/mailbox.h"
#include "runtime/fabric/nic_board.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

/// One per worker; those of a process speak through its board.
class NicMonitor final : private LinkWatchOwner, private fabric::NicBoard::Reader {
 public:
  class Member {
   public:
    /// It lost its carrier, was taken down or failed.
    virtual void on_domain_down(const fabric::FailureDomain& domain) = 0;
    virtual void on_domain_up(const fabric::FailureDomain& domain) = 0;
    /// Somebody else's path through these to host `peer` was silent for too long.
    virtual void on_suspicion(const fabric::FailureDomains& domains, const std::string& peer) = 0;
    /// This host's interfaces have changed (Provider::interfaces).
    virtual void on_interfaces_renewed() {}

   protected:
    ~Member() = default;
  };

  /// That of the context's worker.  Where nobody tells of links the members still tell each other.
  /// They keep it; the board outlives it.
  static std::shared_ptr<NicMonitor> of(Context& context, fabric::NicBoard& board);
  ~NicMonitor() override;
  void enter(Member* member) { members_.push_back(member); }
  void unsubscribe(Member* member) { std::erase(members_, member); }
  /// False: the NIC lost its link, was taken down or failed, is there still, and no more was heard
  /// of it.
  bool has_link(const std::string& nic) const { return !without_link_.contains(nic); }
  /// Of this worker.
  size_t members() const { return members_.size(); }
  /// That something is kept of.
  size_t names() const { return links_.size() + without_link_.size(); }
  /// Tells all but `from`, of this worker and of the others.
  void suspect(const Member* from, const fabric::FailureDomains& domains, const std::string& peer);

 private:
  class Subscriber;
  NicMonitor(Context& context, fabric::NicBoard& board) : context_(context), board_(board) {}
  void on_link(const std::string& nic, bool up) override;
  void on_link_gone(const std::string& nic) override;
  void on_interfaces() override { board_.ask_renewal(); }
  void on_notice() override;
  void read_board();
  void tell(const fabric::FailureDomain& domain, bool up);
  void tell_suspicion(const Member* from, const fabric::FailureDomains& domains,
                      const std::string& peer);

  Context& context_;
  fabric::NicBoard& board_;
  ActorId subscriber_{};     ///< hears on this worker what others post
  Address<Message> to_ear_;  ///< under the board's lock
  std::atomic<bool> told_{false};
  std::unique_ptr<LinkWatch> watch_;
  std::map<std::string, bool> links_;  ///< of each NIC, whether it has one: the last that was heard
  std::set<std::string> without_link_;
  std::vector<Member*> members_;
};

}  // namespace nccl_ha
