// A network plugin that passes everything on to a good one and then does one thing wrong, to prove
// that whoever drives it notices.
//
// NHA_INNER_PLUGIN names the good plugin.  NHA_MISDEED is ACTION:N and applies to the N-th message
// this process receives (counted from 1):
//   flip   one bit of one byte is changed
//   short  the size is reported as one less
//   stall  its request, and every later one, never ends
//   die    the process kills itself with SIGKILL, at the first message from there on that leaves
//          other receives in flight
//   error  test() fails
//   fork   from there on the process forks all the time, and says at its end what became of that
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "plugin/nccl_abi.h"

namespace nccl_ha::tests {
namespace {

using abi::NcclResult;

constexpr unsigned child_limit_s = 20;  ///< SIGALRM ends a child that hangs
constexpr int between_ms = 100;

[[noreturn]] void live_as_a_child(unsigned kind) {
  alarm(child_limit_s);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);  // what the parent has not written yet is the parent's
  switch (kind % 4) {
    case 0:
      exit(0);
    case 1:
      _exit(0);
    case 2:
      execl("/bin/true", "true", nullptr);
      _exit(1);
    default:
      poll(nullptr, 0, 300);  // longer than a silence that counts
      exit(0);
  }
}

/// Forks all the time, as a program does that starts helpers: the children do what children do, one
/// thing after the other.  At the end it says how many ended as they should.
class Forking {
 public:
  Forking() : thread_([this] { run(); }) {}
  ~Forking() {
    if (getpid() != process_) {
      new (&thread_) std::thread();  // it is not here
      return;
    }
    ends_.store(true);
    thread_.join();
    std::fprintf(stderr, "forks: %u children ended well, %u did not\n", good_, bad_);
  }
  Forking(const Forking&) = delete;
  Forking& operator=(const Forking&) = delete;

 private:
  void run() {
    for (unsigned kind = 0; !ends_.load(); ++kind) {
      const pid_t child = fork();
      if (child == 0) {
        live_as_a_child(kind);
      }
      int status = -1;
      const bool good = child > 0 && waitpid(child, &status, 0) == child && status == 0;
      ++(good ? good_ : bad_);
      poll(nullptr, 0, between_ms);
    }
  }

  const pid_t process_ = getpid();
  std::atomic<bool> ends_{false};
  unsigned good_ = 0;
  unsigned bad_ = 0;
  std::thread thread_;
};

struct State {
  const abi::NetV8* inner = nullptr;
  std::string action;
  uint64_t at = 0;
  uint64_t received = 0;
  std::mutex mutex;
  struct Pending {
    unsigned char* data;
    int size;
  };
  std::map<void*, Pending> pending;
  /// Ends with the first connection that is closed: where a thread is in exit(3) or atexit(3) no
  /// child can exit, as the C library leaves it their lock.
  std::unique_ptr<Forking> forking;
};

State& state() {
  static State the;
  return the;
}

NcclResult init(abi::Logger logger) {
  State& s = state();
  const char* file = std::getenv("NHA_INNER_PLUGIN");
  const char* misdeed = std::getenv("NHA_MISDEED");
  void* library = file == nullptr ? nullptr : dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr || misdeed == nullptr) {
    logger(abi::LogLevel::warn, 1, __FILE__, __LINE__, "NHA_INNER_PLUGIN or NHA_MISDEED is wrong");
    return NcclResult::invalid_usage;
  }
  const std::string text = misdeed;
  s.action = text.substr(0, text.find(':'));
  s.at = std::strtoull(text.c_str() + s.action.size() + 1, nullptr, 10);
  s.inner = static_cast<const abi::NetV8*>(dlsym(library, "ncclNetPlugin_v8"));
  return s.inner == nullptr ? NcclResult::invalid_usage : s.inner->init(logger);
}

NcclResult devices(int* count) { return state().inner->devices(count); }
NcclResult get_properties(int device, abi::PropertiesV8* properties) {
  const NcclResult result = state().inner->get_properties(device, properties);
  properties->max_recvs = 1;
  return result;
}
NcclResult listen(int device, void* handle, void** comm) {
  return state().inner->listen(device, handle, comm);
}
NcclResult connect(int device, void* handle, void** comm, abi::DeviceHandle** offload) {
  return state().inner->connect(device, handle, comm, offload);
}
NcclResult accept(void* listener, void** comm, abi::DeviceHandle** offload) {
  return state().inner->accept(listener, comm, offload);
}
NcclResult reg_mr(void* comm, void* data, size_t size, int type, void** mhandle) {
  return state().inner->reg_mr(comm, data, size, type, mhandle);
}
NcclResult dereg_mr(void* comm, void* mhandle) { return state().inner->dereg_mr(comm, mhandle); }
NcclResult isend(void* comm, void* data, int size, int tag, void* mhandle, void** request) {
  return state().inner->isend(comm, data, size, tag, mhandle, request);
}

NcclResult irecv(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                 void** request) {
  State& s = state();
  const NcclResult result = s.inner->irecv(comm, n, data, sizes, tags, mhandles, request);
  if (result == NcclResult::success && *request != nullptr) {
    const std::lock_guard lock(s.mutex);
    s.pending[*request] = {static_cast<unsigned char*>(data[0]), sizes[0]};
  }
  return result;
}

NcclResult misbehave(State& s, const State::Pending& message, int* done, int* sizes) {
  if (s.action == "flip" && message.size > 0) {
    message.data[message.size / 2] ^= 0x10;
  } else if (s.action == "short") {
    *sizes -= 1;
  } else if (s.action == "error") {
    *done = 0;
    return NcclResult::remote_error;
  } else if (s.action == "die") {
    // Tells the test that the transfer was under way.
    std::fprintf(stderr, "dying with %zu receives in flight\n", s.pending.size());
    kill(getpid(), SIGKILL);
  } else if (s.action == "fork") {
    s.forking = std::make_unique<Forking>();
  }
  return NcclResult::success;
}

NcclResult test(void* request, int* done, int* sizes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.pending.find(request);
  if (found == s.pending.end()) {
    return s.inner->test(request, done, sizes);
  }
  if (s.action == "stall" && s.received + 1 >= s.at) {
    *done = 0;
    return NcclResult::success;
  }
  const NcclResult result = s.inner->test(request, done, sizes);
  if (result != NcclResult::success || *done == 0) {
    return result;
  }
  const State::Pending message = found->second;
  s.pending.erase(found);
  ++s.received;
  const bool now =
      s.action == "die" ? s.received >= s.at && !s.pending.empty() : s.received == s.at;
  return now ? misbehave(s, message, done, sizes) : result;
}

NcclResult close_send(void* comm) {
  state().forking.reset();
  return state().inner->close_send(comm);
}
NcclResult close_recv(void* comm) {
  state().forking.reset();
  return state().inner->close_recv(comm);
}
NcclResult close_listen(void* comm) { return state().inner->close_listen(comm); }

}  // namespace
}  // namespace nccl_ha::tests

namespace tests = nccl_ha::tests;

extern "C" __attribute__((visibility("default"))) const nccl_ha::abi::NetV8 ncclNetPlugin_v8 = {
    .name = "Corrupting",
    .init = tests::init,
    .devices = tests::devices,
    .get_properties = tests::get_properties,
    .listen = tests::listen,
    .connect = tests::connect,
    .accept = tests::accept,
    .reg_mr = tests::reg_mr,
    .reg_mr_dmabuf = nullptr,
    .dereg_mr = tests::dereg_mr,
    .isend = tests::isend,
    .irecv = tests::irecv,
    .iflush = nullptr,
    .test = tests::test,
    .close_send = tests::close_send,
    .close_recv = tests::close_recv,
    .close_listen = tests::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};
