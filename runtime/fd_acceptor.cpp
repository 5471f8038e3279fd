#include "runtime/fd_acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace nccl_ha {
namespace {

/// A listening socket of its own under a watch.
class FdAcceptor final : public Acceptor, private FdWatchOwner {
 public:
  FdAcceptor(int fd, AcceptorOwner* owner) : fd_(fd), owner_(owner) {}
  ~FdAcceptor() override {
    watch_.reset();  // the descriptor must outlive it
    close(fd_);
    *alive_ = false;
  }
  Result<void> watch(StreamFactory& factory) {
    auto watch = factory.watch_fd(fd_, this);
    if (!watch) {
      return watch.error();
    }
    watch_ = std::move(*watch);
    return {};
  }

 private:
  void on_readable(int fd) override;

  const int fd_;
  AcceptorOwner* owner_;
  std::unique_ptr<FdWatch> watch_;
  /// Outlives this object, which the owner may destroy when it is called.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

void FdAcceptor::on_readable(int listening) {
  constexpr int burst = 16;
  const std::shared_ptr<bool> alive = alive_;
  for (int i = 0; i < burst && *alive; ++i) {
    const int fd = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
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
    owner_->on_acceptor_error(
        fail(Errc::system,
             error == EMFILE || error == ENFILE
                 ? "no file descriptor is left for a connection; raise the limit (ulimit -n)"
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
