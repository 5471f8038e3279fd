#include "tests/rig/nic/control.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace nccl_ha::emulated {

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(now.tv_nsec);
}

SocketName socket_name(const std::string& fabric, unsigned number) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  // Behind a zero byte: a name that is in no file system.
  const int length = std::snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "nccl-ha-nic/%s/%u",
                                   fabric.c_str(), number);
  SocketName name;
  static_assert(sizeof at <= sizeof name.bytes);
  std::memcpy(name.bytes.data(), &at, sizeof at);
  name.length =
      static_cast<uint32_t>(offsetof(sockaddr_un, sun_path) + 1U) + static_cast<uint32_t>(length);
  return name;
}

Control::Control(const std::string& file) {
  int descriptor = -1;
  int flags = MAP_SHARED | MAP_ANONYMOUS;
  fabric_ = std::to_string(getuid());
  if (!file.empty()) {
    flags = MAP_SHARED;
    fabric_ += "." + std::to_string(std::hash<std::string>{}(file)&0xFFFFFFFFU);
    descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0 || ftruncate(descriptor, sizeof(SharedState)) != 0) {
      std::perror(("emulated NIC: " + file).c_str());
      std::abort();
    }
  }
  void* memory = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (descriptor >= 0) {
    close(descriptor);
  }
  if (memory == MAP_FAILED) {
    std::perror("emulated NIC: memory");
    std::abort();
  }
  state_ = static_cast<SharedState*>(memory);  // zeros are the state without faults
}

void Control::set_mode(unsigned host, unsigned device, Mode mode) {
  DeviceState& state = this->device(host, device);
  state.since = now_ns();
  state.mode = static_cast<uint32_t>(mode);
  if (mode == Mode::reset || mode == Mode::internal) {
    raise({host, device, 0, IBV_EVENT_DEVICE_FATAL, 0, 0});
  }
}

void Control::remove(unsigned host, unsigned device, uint64_t nanoseconds) {
  this->device(host, device).takes = nanoseconds;
  set_mode(host, device, Mode::removing);
  wake();
}

void Control::bring_back(unsigned host, unsigned device) {
  ++this->device(host, device).generation;
  set_mode(host, device, Mode::running);
}

void Control::cut(unsigned host, unsigned device, unsigned port, uint32_t directions, bool link) {
  PortState& state = this->device(host, device).ports[port - 1];
  state.cut = directions;
  const uint32_t down = directions != 0 ? 1 : 0;
  if (link && state.down.exchange(down) != down) {
    raise({host, device, port,
           static_cast<uint32_t>(down != 0 ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE), 0, 0});
  } else {
    wake();
  }
}

void Control::hold(unsigned host, unsigned device, unsigned port, uint64_t nanoseconds) {
  this->device(host, device).ports[port - 1].held_until = now_ns() + nanoseconds;
}

void Control::raise(const EventOrder& order) {
  const uint32_t count = state_->event_count.load();
  state_->events[count % SharedState::events_max] = order;
  state_->event_count.store(count + 1);
  wake();
}

void Control::wake() {
  const int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  for (unsigned number = 0; number < state_->members.size(); ++number) {
    if (state_->members[number].load() != 0) {
      const SocketName name = socket_name(fabric_, number);
      // An empty datagram.  A full socket is one that is looked at anyway.
      static_cast<void>(sendto(from, "", 0, MSG_NOSIGNAL,
                               reinterpret_cast<const sockaddr*>(name.bytes.data()), name.length));
    }
  }
  close(from);
}

}  // namespace nccl_ha::emulated
