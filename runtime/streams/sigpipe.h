// Writing to a connection that the peer has closed must not end the caller's process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace nccl_ha {

/// Keeps SIGPIPE from the calling thread for as long as it lives, and takes back one that came
/// meanwhile.  libuv writes to sockets without MSG_NOSIGNAL, and in inline mode the thread, with
/// its signal mask, is the application's.
class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pending_ = is_pending();
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeGuard() {
    if (!pending_ && is_pending()) {
      const timespec none{};
      sigtimedwait(&pipe_, nullptr, &none);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  static bool is_pending() {
    sigset_t set;
    sigpending(&set);
    return sigismember(&set, SIGPIPE) == 1;
  }
  sigset_t pipe_;
  sigset_t before_;
  bool pending_;
};

}  // namespace nccl_ha
