#include "runtime/streams/kernel_links.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/streams/watched_fd.h"

namespace nccl_ha {
namespace {

class KernelLinks final : public LinkWatch, public WatchedFd {
 public:
  KernelLinks(int fd, LinkWatchOwner* owner) : WatchedFd(fd), owner_(owner) {}

 private:
  void on_readable(int fd) override;
  void take(const nlmsghdr& message);

  LinkWatchOwner* owner_;
};

void KernelLinks::on_readable(int fd) {
  alignas(nlmsghdr) char buffer[32768];
  constexpr int burst = 8;
  const std::shared_ptr<const bool> alive = this->alive();
  for (int i = 0; i < burst && *alive; ++i) {
    const ssize_t got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT | MSG_TRUNC);
    if (got <= 0 || static_cast<size_t>(got) > sizeof buffer) {
      return;  // what was lost (ENOBUFS) is found out by silence
    }
    auto left = static_cast<uint32_t>(got);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(buffer);
         *alive && NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      take(*message);
    }
  }
}

void KernelLinks::take(const nlmsghdr& message) {
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
      const auto* name = static_cast<const char*>(RTA_DATA(attribute));
      constexpr unsigned works = IFF_UP | IFF_RUNNING;
      owner_->on_link(std::string(name, strnlen(name, RTA_PAYLOAD(attribute))),
                      message.nlmsg_type == RTM_NEWLINK && (info->ifi_flags & works) == works);
      return;
    }
  }
}

}  // namespace

Result<std::unique_ptr<LinkWatch>> watch_kernel_links(StreamFactory& factory,
                                                      LinkWatchOwner* owner) {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) {
    return fail(Errc::system, "cannot open a netlink socket", errno);
  }
  auto watch = std::make_unique<KernelLinks>(fd, owner);
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail(Errc::system, "cannot hear of links", errno);
  }
  if (auto watched = watch->watch(factory); !watched) {
    return watched.error();
  }
  return std::unique_ptr<LinkWatch>(std::move(watch));
}

}  // namespace nccl_ha
