// Tells the connections of a worker at once what one of them, or the kernel, learns of an
// interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/context.h"
#include "runtime/stream.h"

namespace nccl_ha {

class NicMonitor final : private LinkWatchOwner {
 public:
  class Member {
   public:
    /// `interface` lost its carrier or was taken down.
    virtual void on_link_down(const std::string& interface) = 0;
    virtual void on_link_up(const std::string& interface) = 0;
    /// Somebody else's path from `interface` to host `peer` was silent for too long.
    virtual void on_suspicion(const std::string& interface, const std::string& peer) = 0;

   protected:
    ~Member() = default;
  };

  /// That of the context's worker.  Where nobody tells of links (a simulated network) the members
  /// still tell each other.  They keep it.
  static std::shared_ptr<NicMonitor> of(Context& context);
  void enter(Member* member) { members_.push_back(member); }
  void leave(Member* member) { std::erase(members_, member); }
  /// Tells all but `from`.
  void suspect(const Member* from, const std::string& interface, const std::string& peer);

 private:
  void on_link(const std::string& interface, bool up) override;

  std::unique_ptr<LinkWatch> watch_;
  std::vector<Member*> members_;
};

}  // namespace nccl_ha
