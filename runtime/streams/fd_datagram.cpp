#include "runtime/streams/fd_datagram.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "runtime/base/own_fd.h"
#include "runtime/streams/watched_fd.h"

namespace nccl_ha {
namespace {

socklen_t length_of(const sockaddr& address) {
  return address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

class FdDatagram final : public DatagramEndpoint, public WatchedFd {
 public:
  FdDatagram(int fd, DatagramOwner* owner) : WatchedFd(fd), fd_(fd), owner_(owner) {}

  Result<void> send(std::span<const std::byte> bytes, const sockaddr* to) override {
    if (sendto(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to, length_of(*to)) >=
        0) {
      return {};
    }
    const int error = errno;
    return error == EAGAIN ? fail(Errc::again, "the datagram socket is full")
                           : fail(Errc::system, "sending a datagram failed", error);
  }
  Result<sockaddr_storage> local_address() override {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (getsockname(fd_, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
      return fail(Errc::system, "a datagram socket has no address", errno);
    }
    return storage;
  }

 private:
  void on_readable(int fd) override;

  const int fd_;
  DatagramOwner* owner_;
  std::array<std::byte, 65536> input_;
};

void FdDatagram::on_readable(int fd) {
  constexpr int burst = 32;
  const std::shared_ptr<const bool> alive = this->alive();
  for (int i = 0; i < burst && *alive; ++i) {
    sockaddr_storage from{};
    auto* name = reinterpret_cast<sockaddr*>(&from);
    socklen_t length = sizeof from;
    const ssize_t got = recvfrom(fd, input_.data(), input_.size(), MSG_DONTWAIT, name, &length);
    if (got < 0 && errno != EINTR) {
      return;
    }
    if (got >= 0) {
      owner_->on_datagram(std::span(input_).first(static_cast<size_t>(got)), name);
    }
  }
}

}  // namespace

Result<std::unique_ptr<DatagramEndpoint>> bind_datagram_on(StreamFactory& factory,
                                                           const sockaddr* address,
                                                           DatagramOwner* owner) {
  const int fd = make_fd(
      [&] { return socket(address->sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (fd < 0 || bind(fd, address, length_of(*address)) != 0) {
    const int error = errno;
    close_fd(fd);
    return fail(Errc::system, "cannot bind a datagram socket", error);
  }
  auto endpoint = std::make_unique<FdDatagram>(fd, owner);
  if (auto watched = endpoint->watch(factory); !watched) {
    return watched.error();
  }
  return std::unique_ptr<DatagramEndpoint>(std::move(endpoint));
}

}  // namespace nccl_ha
