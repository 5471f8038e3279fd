#include "runtime/base/netlink.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace nccl_ha::netlink {
namespace {

constexpr size_t answer_bytes = 65536;

/// Of one socket for one question.
class Conversation {
 public:
  Conversation() : fd_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) {}
  ~Conversation() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  Result<void> run(const Request& request, const std::function<void(const nlmsghdr&)>& take);

 private:
  enum class Next : uint8_t { more, done };
  Result<Next> read(const nlmsghdr& message, bool dump,
                    const std::function<void(const nlmsghdr&)>& take);
  const int fd_;
  bool interrupted_ = false;
};

Result<Conversation::Next> Conversation::read(const nlmsghdr& message, bool dump,
                                              const std::function<void(const nlmsghdr&)>& take) {
  interrupted_ = interrupted_ || (message.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
  if (message.nlmsg_type == NLMSG_DONE) {
    const int* error = header_of<int>(message);  // of a dump that broke off
    return error == nullptr || *error >= 0
               ? Result<Next>(Next::done)
               : fail(Errc::system, "the kernel broke a list of the network off", -*error);
  }
  if (message.nlmsg_type == NLMSG_ERROR) {
    const auto* error = header_of<nlmsgerr>(message);
    if (error == nullptr || error->error == 0) {
      return Next::done;
    }
    return fail(Errc::system, "the kernel refuses a question about the network", -error->error);
  }
  take(message);
  return dump ? Next::more : Next::done;
}

Result<void> Conversation::run(const Request& request,
                               const std::function<void(const nlmsghdr&)>& take) {
  if (fd_ < 0) {
    return fail(Errc::system, "cannot open a netlink socket", errno);
  }
  const nlmsghdr& asked = request.message();
  if (send(fd_, &asked, asked.nlmsg_len, 0) < 0) {
    return fail(Errc::system, "cannot ask the kernel about the network", errno);
  }
  const bool dump = (asked.nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
  std::vector<nlmsghdr> room(answer_bytes / sizeof(nlmsghdr));  // aligned as messages are
  auto* const buffer = reinterpret_cast<char*>(room.data());
  for (;;) {
    const ssize_t got = recv(fd_, buffer, answer_bytes, MSG_TRUNC);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0 || static_cast<size_t>(got) > answer_bytes) {
      return fail(Errc::system, "the kernel's answer about the network cannot be read",
                  got < 0 ? errno : EMSGSIZE);
    }
    auto left = static_cast<uint32_t>(got);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(buffer); NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left)) {
      auto next = read(*message, dump, take);
      if (!next) {
        return next.error();
      }
      if (*next == Next::done) {
        return interrupted_ ? fail(Errc::again, "the network changed while it was listed", EINTR)
                            : Result<void>();
      }
    }
  }
}

}  // namespace

Attributes Attributes::after(const nlmsghdr& message, size_t header) {
  const size_t begin = NLMSG_LENGTH(NLMSG_ALIGN(header));
  return message.nlmsg_len < begin
             ? Attributes()
             : Attributes({reinterpret_cast<const std::byte*>(&message) + begin,
                           message.nlmsg_len - begin});
}

const rtattr* Attributes::first_of(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(rtattr)) {
    return nullptr;
  }
  const auto* one = reinterpret_cast<const rtattr*>(bytes.data());
  return one->rta_len < sizeof(rtattr) || one->rta_len > bytes.size() ? nullptr : one;
}

std::span<const std::byte> Attributes::behind(std::span<const std::byte> bytes) {
  const size_t whole = RTA_ALIGN(reinterpret_cast<const rtattr*>(bytes.data())->rta_len);
  return bytes.subspan(std::min(whole, bytes.size()));
}

std::span<const std::byte> Attributes::payload(const rtattr& one) {
  return {reinterpret_cast<const std::byte*>(&one) + RTA_LENGTH(0),
          static_cast<size_t>(one.rta_len) - RTA_LENGTH(0)};
}

std::optional<std::span<const std::byte>> Attributes::find(uint16_t type) const {
  std::optional<std::span<const std::byte>> found;
  each([&](uint16_t is, std::span<const std::byte> bytes) {
    if (is == type && !found) {
      found = bytes;
    }
  });
  return found;
}

std::optional<uint32_t> Attributes::number(uint16_t type) const {
  const auto bytes = find(type);
  if (!bytes || bytes->size() < sizeof(uint32_t)) {
    return std::nullopt;
  }
  uint32_t value = 0;
  std::memcpy(&value, bytes->data(), sizeof value);
  return value;
}

std::string Attributes::text(uint16_t type) const {
  const auto bytes = find(type);
  if (!bytes) {
    return "";
  }
  const auto* begin = reinterpret_cast<const char*>(bytes->data());
  return std::string(begin, strnlen(begin, bytes->size()));
}

Attributes Attributes::nested(uint16_t type) const {
  const auto bytes = find(type);
  return bytes ? Attributes(*bytes) : Attributes();
}

Request::Request(uint16_t type, uint16_t flags) {
  auto* message = reinterpret_cast<nlmsghdr*>(bytes_.data());
  message->nlmsg_len = NLMSG_HDRLEN;
  message->nlmsg_type = type;
  message->nlmsg_flags = static_cast<uint16_t>(flags | NLM_F_REQUEST);
}

void Request::append(const void* data, size_t bytes) {
  auto* message = reinterpret_cast<nlmsghdr*>(bytes_.data());
  const size_t at = NLMSG_ALIGN(message->nlmsg_len);
  NHA_ASSERT(at + bytes <= bytes_.size(), "a question to the kernel is short");
  std::memcpy(bytes_.data() + at, data, bytes);
  message->nlmsg_len = static_cast<uint32_t>(at + bytes);
}

void Request::add(uint16_t type, std::span<const std::byte> bytes) {
  rtattr head{};
  head.rta_type = type;
  head.rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes.size()));
  append(&head, sizeof head);
  append(bytes.data(), bytes.size());
}

void Request::add(uint16_t type, uint32_t number) {
  add(type, std::as_bytes(std::span(&number, 1)));
}

Result<void> ask(const Request& request, const std::function<void(const nlmsghdr&)>& take) {
  Conversation conversation;
  return conversation.run(request, take);
}

}  // namespace nccl_ha::netlink
