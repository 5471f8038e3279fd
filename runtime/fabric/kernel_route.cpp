#include "runtime/fabric/kernel_route.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <span>

#include "runtime/base/netlink.h"

namespace nccl_ha::fabric {

std::optional<int> interface_towards(const IpAddress& to, const IpAddress& from) {
  if (to.family != from.family || to.link_local()) {
    return std::nullopt;
  }
  const size_t bytes = to.family == 6 ? 16 : 4;
  rtmsg about{};
  about.rtm_family = to.family == 6 ? AF_INET6 : AF_INET;
  about.rtm_dst_len = static_cast<uint8_t>(8 * bytes);
  about.rtm_src_len = about.rtm_dst_len;
  netlink::Request request(RTM_GETROUTE, 0, about);
  request.add(RTA_DST, std::as_bytes(std::span(to.bytes)).first(bytes));
  request.add(RTA_SRC, std::as_bytes(std::span(from.bytes)).first(bytes));
  std::optional<int> found;
  const auto asked = netlink::ask(request, [&](const nlmsghdr& message) {
    const auto* route = netlink::header_of<rtmsg>(message);
    if (message.nlmsg_type == RTM_NEWROUTE && route != nullptr && route->rtm_type == RTN_UNICAST) {
      const auto interface = netlink::Attributes::after(message, sizeof(rtmsg)).number(RTA_OIF);
      found = interface ? std::optional(static_cast<int>(*interface)) : std::nullopt;
    }
  });
  return asked ? found : std::nullopt;
}

}  // namespace nccl_ha::fabric
