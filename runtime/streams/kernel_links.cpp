#include "runtime/streams/kernel_links.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/streams/watched_fd.h"

namespace nccl_ha {
namespace {

/// Whether each interface works, by its name.
using Links = std::map<std::string, bool>;

bool works(unsigned flags) {
  constexpr unsigned needed = IFF_UP | IFF_RUNNING;
  return (flags & needed) == needed;
}

/// The names of this thread's network namespace.  Unlike a dump over netlink, neither this file nor
/// an ioctl waits for the kernel's lock of its configuration, which others may hold for seconds.
std::optional<std::vector<std::string>> interface_names() {
  std::ifstream file("/proc/thread-self/net/dev");
  std::string line;
  std::getline(file, line);
  std::getline(file, line);  // two lines of titles
  if (!file) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  while (std::getline(file, line)) {
    const size_t begin = line.find_first_not_of(' ');
    const size_t end = line.find(':');  // is part of no name
    if (begin < end && end != std::string::npos) {
      names.push_back(line.substr(begin, end - begin));
    }
  }
  return names;
}

/// As they are; one whose state is not told is as `before`.  nullopt: nothing can be told.
std::optional<Links> links_now(const Links& before) {
  const auto names = interface_names();
  const int fd = names ? make_fd([] { return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); }) : -1;
  if (fd < 0) {
    return std::nullopt;
  }
  // The file may miss an interface when another one goes while it is read.
  std::set<std::string> asked(names->begin(), names->end());
  for (const auto& [name, up] : before) {
    asked.insert(name);
  }
  Links links;
  for (const std::string& name : asked) {
    ifreq request{};
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    const auto known = before.find(name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
      links[name] = works(static_cast<unsigned short>(request.ifr_flags));
    } else if (errno != ENODEV && known != before.end()) {
      links.insert(*known);
    }
  }
  close_fd(fd);
  return links;
}

class KernelLinks final : public LinkWatch, public WatchedFd {
 public:
  KernelLinks(int fd, LinkWatchOwner* owner)
      : WatchedFd(fd), owner_(owner), links_(links_now({}).value_or(Links())) {}

 private:
  void on_readable(int fd) override;
  void take(const nlmsghdr& message);
  void look_again();
  void tell(const std::vector<std::pair<std::string, bool>>& changed,
            const std::vector<std::string>& gone);

  LinkWatchOwner* owner_;
  Links links_;                       ///< as last told; what there is at first is not told
  std::map<int, std::string> names_;  ///< by index, of those that were told of
  bool lost_ = false;                 ///< there was no room for news, and is none until all is read
  bool renewed_ = false;              ///< on_interfaces() is due
};

void KernelLinks::on_readable(int fd) {
  alignas(nlmsghdr) char buffer[32768];
  constexpr int burst = 8;
  constexpr int errors_max = 4;  // one that stays is the watch's affair
  int errors = 0;
  const std::shared_ptr<const bool> alive = this->alive();
  // Until all is read where something was lost: meanwhile nothing is added.
  for (int i = 0; *alive && (i < burst || lost_); ++i) {
    const ssize_t got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && errno == EAGAIN) {
      if (std::exchange(renewed_, false)) {
        owner_->on_interfaces();
      }
      if (*alive && std::exchange(lost_, false)) {
        look_again();
      }
      return;
    }
    if (got <= 0 || static_cast<size_t>(got) > sizeof buffer) {
      lost_ = true;  // ENOBUFS, as a rule
      if (got <= 0 && ++errors == errors_max) {
        return;
      }
      continue;
    }
    auto left = static_cast<uint32_t>(got);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(buffer);
         *alive && NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      take(*message);
    }
  }
}

void KernelLinks::take(const nlmsghdr& message) {
  renewed_ = renewed_ || message.nlmsg_type == RTM_NEWADDR || message.nlmsg_type == RTM_DELADDR;
  if ((message.nlmsg_type != RTM_NEWLINK && message.nlmsg_type != RTM_DELLINK) ||
      message.nlmsg_len < NLMSG_LENGTH(sizeof(ifinfomsg))) {
    return;
  }
  const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(&message));
  if (info->ifi_family == AF_BRIDGE) {
    return;  // of an interface as a bridge's port: one that leaves the bridge goes on
  }
  auto left = static_cast<uint32_t>(message.nlmsg_len - NLMSG_LENGTH(sizeof *info));
  for (const rtattr* attribute = IFLA_RTA(info); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type == IFLA_IFNAME) {
      const auto* text = static_cast<const char*>(RTA_DATA(attribute));
      const std::string name(text, strnlen(text, RTA_PAYLOAD(attribute)));
      const bool there = message.nlmsg_type == RTM_NEWLINK;
      const bool up = there && works(info->ifi_flags);
      std::vector<std::string> gone;
      std::string& known = names_[info->ifi_index];
      if (known != name) {
        renewed_ = true;
        links_.erase(known);  // renamed, or its number was another one's
        if (!known.empty()) {
          gone.push_back(known);
        }
        known = name;
      }
      if (there) {
        links_[name] = up;
      } else {
        links_.erase(name);
        names_.erase(info->ifi_index);
        renewed_ = true;
        gone.push_back(name);
      }
      tell({{name, up}}, gone);
      return;
    }
  }
}

void KernelLinks::look_again() {
  auto now = links_now(links_);
  if (!now) {
    NHA_LOG_WARN_LIMITED(
        "news of links was lost and they cannot be looked at: what has changed is found out by "
        "silence");
    lost_ = true;  // with the next news again
    return;
  }
  std::vector<std::pair<std::string, bool>> changed;
  std::vector<std::string> gone;
  for (const auto& [name, up] : links_) {
    if (!now->contains(name)) {
      changed.emplace_back(name, false);
      gone.push_back(name);
    }
  }
  for (const auto& [name, up] : *now) {
    const auto known = links_.find(name);
    if (known == links_.end() || known->second != up) {
      changed.emplace_back(name, up);
    }
  }
  links_ = std::move(*now);
  std::erase_if(names_, [&](const auto& one) { return !links_.contains(one.second); });
  NHA_LOG_WARN_LIMITED("the kernel had no room for news of links; of {} that there are {} changed",
                       links_.size(), changed.size());
  const std::shared_ptr<const bool> alive = this->alive();
  tell(changed, gone);
  if (*alive) {
    owner_->on_interfaces();
  }
}

/// With any of it the watch may end.
void KernelLinks::tell(const std::vector<std::pair<std::string, bool>>& changed,
                       const std::vector<std::string>& gone) {
  const std::shared_ptr<const bool> alive = this->alive();
  for (size_t i = 0; i < changed.size() && *alive; ++i) {
    owner_->on_link(changed[i].first, changed[i].second);
  }
  for (size_t i = 0; i < gone.size() && *alive; ++i) {
    owner_->on_link_gone(gone[i]);
  }
}

}  // namespace

Result<std::unique_ptr<LinkWatch>> watch_kernel_links(StreamFactory& factory,
                                                      LinkWatchOwner* owner) {
  const int fd = make_fd(
      [] { return socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE); });
  if (fd < 0) {
    return fail(Errc::system, "cannot open a netlink socket", errno);
  }
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    close_fd(fd);
    return fail(Errc::system, "cannot hear of links", error);
  }
  auto watch = std::make_unique<KernelLinks>(fd, owner);  // looks when news is heard already
  if (auto watched = watch->watch(factory); !watched) {
    return watched.error();
  }
  return std::unique_ptr<LinkWatch>(std::move(watch));
}

}  // namespace nccl_ha
