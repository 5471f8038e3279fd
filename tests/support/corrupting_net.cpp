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
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "plugin/nccl_abi.h"

namespace nccl_ha::tests {
namespace {

using abi::NcclResult;

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

NcclResult close_send(void* comm) { return state().inner->close_send(comm); }
NcclResult close_recv(void* comm) { return state().inner->close_recv(comm); }
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
