// Questions to the kernel about this host's network (rtnetlink(7)), and its answers taken apart.
#pragma once

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::netlink {

/// The attributes of a message, or those nested in one of them.  Bounds are checked; the memory is
/// the message's.
class Attributes {
 public:
  Attributes() = default;
  explicit Attributes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  /// Those that follow `header` bytes of fixed fields.
  static Attributes after(const nlmsghdr& message, size_t header);

  /// The first of that type; nullopt: there is none.
  std::optional<std::span<const std::byte>> find(uint16_t type) const;
  std::optional<uint32_t> number(uint16_t type) const;
  /// Without the zero at its end; empty: there is none.
  std::string text(uint16_t type) const;
  Attributes nested(uint16_t type) const;
  /// Calls `take(type, bytes)` for each of them.
  template <class Take>
  void each(Take&& take) const {
    for (std::span<const std::byte> left = bytes_; const rtattr* one = first_of(left);
         left = behind(left)) {
      take(static_cast<uint16_t>(one->rta_type & NLA_TYPE_MASK), payload(*one));
    }
  }

 private:
  static const rtattr* first_of(std::span<const std::byte> bytes);
  static std::span<const std::byte> behind(std::span<const std::byte> bytes);
  static std::span<const std::byte> payload(const rtattr& one);
  std::span<const std::byte> bytes_;
};

/// The fixed fields of a message; null: it is too short.
template <class Header>
const Header* header_of(const nlmsghdr& message) {
  return message.nlmsg_len < NLMSG_LENGTH(sizeof(Header))
             ? nullptr
             : static_cast<const Header*>(NLMSG_DATA(&message));
}

/// A request that is built in place.
class Request {
 public:
  /// `header` is copied: an ifinfomsg, an rtmsg and so on.
  template <class Header>
  Request(uint16_t type, uint16_t flags, const Header& header) : Request(type, flags) {
    append(&header, sizeof header);
  }
  void add(uint16_t type, std::span<const std::byte> bytes);
  void add(uint16_t type, uint32_t number);
  const nlmsghdr& message() const { return *reinterpret_cast<const nlmsghdr*>(bytes_.data()); }

 private:
  Request(uint16_t type, uint16_t flags);
  void append(const void* data, size_t bytes);
  alignas(nlmsghdr) std::array<std::byte, 256> bytes_{};
};

/// Sends `request` and calls `take` for each message of the answer, which is one, or many for
/// NLM_F_DUMP.  Any thread.  Blocks, a dump possibly for as long as others hold the kernel's lock
/// of its configuration.  An error of the kernel's has its errno.
Result<void> ask(const Request& request, const std::function<void(const nlmsghdr&)>& take);

}  // namespace nccl_ha::netlink
