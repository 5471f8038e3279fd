#include "actors/nic_monitor.h"

#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/worker.h"

namespace nccl_ha {

class NicMonitor::Subscriber final : public Actor {
 public:
  explicit Subscriber(std::weak_ptr<NicMonitor> monitor) : monitor_(std::move(monitor)) {}
  const char* name() const override { return "nic-monitor"; }
  void start(Context& context) override { (void)context; }
  void on(const Message& message) override {
    (void)message;
    if (const auto monitor = monitor_.lock()) {
      monitor->read_board();
    }
  }

 private:
  std::weak_ptr<NicMonitor> monitor_;
};

std::shared_ptr<NicMonitor> NicMonitor::of(Context& context, fabric::NicBoard& board) {
  if (auto known = context.shared().find<NicMonitor>()) {
    return known;
  }
  std::shared_ptr<NicMonitor> made(new NicMonitor(context, board));
  auto watch = context.streams().watch_links(made.get());
  if (watch) {
    made->watch_ = std::move(*watch);
  } else if (watch.error().code != Errc::invalid_usage) {
    NHA_LOG_WARN(
        "a cable that is pulled is found out by silence only, as links are not watched: {}",
        watch.error().message());
  }
  auto address = context.worker().open_address(1);
  auto subscriber = address ? context.add_actor(std::make_unique<Subscriber>(made))
                            : Result<ActorId>(address.error());
  if (subscriber) {
    made->to_ear_ = std::move(*address);
    made->subscriber_ = *subscriber;
    if (board.enter(made.get())) {
      board.ask_renewal();  // of what changed before somebody heard the kernel
    }
  } else {
    NHA_LOG_WARN("what other threads learn of NICs is not heard: {}", subscriber.error().message());
  }
  context.shared().put(made);
  return made;
}

NicMonitor::~NicMonitor() {
  if (to_ear_) {
    board_.unsubscribe(this);
    context_.remove_actor(subscriber_);
  }
}

/// A kernel repeats the state of a link when anything else of the interface changes.
void NicMonitor::on_link(const std::string& nic, bool up) {
  const auto [known, first] = links_.try_emplace(nic, up);
  if (!first && std::exchange(known->second, up) == up) {
    return;
  }
  tell({fabric::FailureDomain::Kind::local_nic, nic}, up);
}

/// A host of containers has new names all the time.  Should this one come again, it is news.
void NicMonitor::on_link_gone(const std::string& nic) {
  links_.erase(nic);
  without_link_.erase(nic);
}

void NicMonitor::tell(const fabric::FailureDomain& domain, bool up) {
  if (domain.kind == fabric::FailureDomain::Kind::local_nic) {
    up ? static_cast<void>(without_link_.erase(domain.name))
       : static_cast<void>(without_link_.insert(domain.name));
  }
  // A member may leave when it is told.
  const std::vector<Member*> told = members_;
  for (Member* member : told) {
    if (up) {
      member->on_domain_up(domain);
    } else {
      member->on_domain_down(domain);
    }
  }
}

void NicMonitor::suspect(const Member* from, const fabric::FailureDomains& domains,
                         const std::string& peer) {
  tell_suspicion(from, domains, peer);
  board_.post({fabric::NicNotice::Kind::suspect, domains, peer}, this);
}

void NicMonitor::tell_suspicion(const Member* from, const fabric::FailureDomains& domains,
                                const std::string& peer) {
  const std::vector<Member*> told = members_;
  for (Member* member : told) {
    if (member != from) {
      member->on_suspicion(domains, peer);
    }
  }
}

void NicMonitor::on_notice() {
  if (told_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  Message message{};
  message.to = subscriber_;
  if (!to_ear_.try_send(message)) {
    told_.store(false, std::memory_order_release);  // the next notice tries again
  }
}

void NicMonitor::read_board() {
  told_.store(false, std::memory_order_release);
  for (const fabric::NicNotice& notice : board_.take(this)) {
    switch (notice.kind) {
      case fabric::NicNotice::Kind::down:
      case fabric::NicNotice::Kind::up:
        for (const fabric::FailureDomain& domain : notice.domains) {
          tell(domain, notice.kind == fabric::NicNotice::Kind::up);
        }
        break;
      case fabric::NicNotice::Kind::suspect:
        tell_suspicion(nullptr, notice.domains, notice.peer);
        break;
      case fabric::NicNotice::Kind::renewed: {
        const std::vector<Member*> told = members_;
        for (Member* member : told) {
          member->on_interfaces_renewed();
        }
        break;
      }
    }
  }
}

}  // namespace nccl_ha
