#include "runtime/streams/fd_acceptor.h"

#include <sys/socket.h>

#include <cerrno>

#include "runtime/base/own_fd.h"
#include "runtime/streams/watched_fd.h"

namespace nccl_ha {
namespace {

/// A listening socket of its own under a watch.
class FdAcceptor final : public Acceptor, public WatchedFd {
 public:
  FdAcceptor(int fd, AcceptorOwner* owner) : WatchedFd(fd), owner_(owner) {}

 private:
  void on_readable(int fd) override;

  AcceptorOwner* owner_;
};

void FdAcceptor::on_readable(int listening) {
  constexpr int burst = 16;
  const std::shared_ptr<const bool> alive = this->alive();
  for (int i = 0; i < burst && *alive; ++i) {
    const int fd =
        make_fd([&] { return accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (fd >= 0) {
      owner_->on_accept(fd);
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) {
      return;
    }
    if (error == EINTR || error == ECONNABORTED) {
      continue;
    }
    owner_->on_acceptor_error(fail(Errc::system,
                                   error == EMFILE || error == ENFILE
                                       ? "no file descriptor is left for a connection"
                                       : "accept failed",
                                   error));
    return;
  }
}

}  // namespace

Result<std::unique_ptr<Acceptor>> accept_on(StreamFactory& factory, int fd, AcceptorOwner* owner) {
  auto acceptor = std::make_unique<FdAcceptor>(fd, owner);
  if (auto watched = acceptor->watch(factory); !watched) {
    return watched.error();
  }
  return std::unique_ptr<Acceptor>(std::move(acceptor));
}

}  // namespace nccl_ha
