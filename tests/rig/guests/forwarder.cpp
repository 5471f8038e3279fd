#include "tests/rig/guests/forwarder.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <queue>
#include <random>
#include <string>

#include "runtime/base/clock.h"
#include "tools/common/process.h"

namespace nccl_ha::tools::lab {
namespace {

/// A frame of the largest MTU with its header.
constexpr size_t frame_max = 65600;
constexpr size_t mac_bytes = 6;
constexpr size_t header_bytes = 14;
/// Frames taken from one port before the others get their turn.
constexpr int burst = 32;
/// Frames that wait for a machine that does not take them; more are lost, as in a switch.
constexpr size_t backlog_max = 4096;
/// How much of a slow link's time may be queued; more is lost.
constexpr auto queue_time = std::chrono::milliseconds(100);

using Frame = std::shared_ptr<const std::string>;
using Mac = std::array<char, mac_bytes>;

sockaddr_un socket_address(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.native().copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

/// The forwarding process.
class Switchboard {
 public:
  Switchboard(const Topology& topology, SharedLink* links, std::vector<Fd> sockets,
              std::vector<sockaddr_un> machines)
      : topology_(topology), links_(links), machines_(std::move(machines)) {
    for (Fd& socket : sockets) {
      ports_.push_back({std::move(socket), false, {}});
    }
    queued_until_.resize(2 * topology.links.size());
  }

  [[noreturn]] void run() {
    while (true) {
      std::vector<pollfd> wait;
      for (const PortState& port : ports_) {
        wait.push_back({port.socket.get(),
                        static_cast<short>(port.backlog.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      }
      timespec left{};
      if (!late_.empty()) {
        const auto until = std::max(Duration(0), Duration(late_.top().due - clock_.now())).count();
        left = {until / 1000000000, until % 1000000000};
      }
      const int ready = ppoll(wait.data(), wait.size(), late_.empty() ? nullptr : &left, nullptr);
      for (size_t port = 0; port < wait.size() && ready > 0; ++port) {
        if ((wait[port].revents & POLLOUT) != 0) {
          send_backlog(port);
        }
        if ((wait[port].revents & ~POLLOUT) != 0) {
          receive(port);
        }
      }
      while (!late_.empty() && late_.top().due <= clock_.now()) {
        const Late item = late_.top();
        late_.pop();
        arrive(item.link, item.direction, item.frame);
      }
    }
  }

 private:
  struct PortState {
    Fd socket;
    bool connected;
    std::deque<Frame> backlog;
  };
  /// A frame on a slow link.
  struct Late {
    Instant due;
    uint64_t order;
    size_t link;
    size_t direction;
    Frame frame;
    bool operator<(const Late& other) const {
      return due != other.due ? due > other.due : order > other.order;
    }
  };

  void receive(size_t port) {
    for (int i = 0; i < burst; ++i) {
      const ssize_t got = recv(ports_[port].socket.get(), buffer_.data(), buffer_.size(), 0);
      if (got < 0) {
        return;
      }
      if (got < static_cast<ssize_t>(header_bytes)) {
        continue;
      }
      const size_t link = topology_.ports[port].link;
      enter(link, topology_.links[link].ports[0] == port ? 0 : 1,
            std::make_shared<const std::string>(buffer_.data(), static_cast<size_t>(got)));
    }
  }

  /// A frame enters a link at one end.
  void enter(size_t link, size_t direction, const Frame& frame) {
    SharedDirection& way = links_[link].direction[direction];
    way.frames.fetch_add(1, std::memory_order_relaxed);
    way.bytes.fetch_add(frame->size(), std::memory_order_relaxed);
    const uint32_t loss = way.loss.load(std::memory_order_relaxed);
    if (!links_[link].carrier.load(std::memory_order_relaxed)) {
      return;
    }
    const uint32_t mtu = links_[link].mtu.load(std::memory_order_relaxed);
    if (way.blocked.load(std::memory_order_relaxed) ||
        (loss > 0 && random_() % loss_whole < loss) ||
        (mtu > 0 && frame->size() > mtu + header_bytes)) {
      way.dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    Instant& until = queued_until_[2 * link + direction];
    const uint64_t rate = way.bits_per_second.load(std::memory_order_relaxed);
    const Instant now = rate > 0 || until > Instant{} ? clock_.now() : Instant{};
    if (rate == 0 && until <= now) {
      until = {};
      arrive(link, direction, frame);
      return;
    }
    // Frames stay in order when a link is made fast again while some still wait.
    until = std::max(until, now);
    if (until - now > queue_time) {
      way.dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (rate > 0) {
      until += Duration(static_cast<int64_t>(static_cast<double>(frame->size()) * 8e9 /
                                             static_cast<double>(rate)));
    }
    late_.push({until, order_++, link, direction, frame});
  }

  /// A frame leaves a link at the other end.
  void arrive(size_t link, size_t direction, const Frame& frame) {
    const Link& about = topology_.links[link];
    if (!about.to_switch()) {
      send(about.ports[1 - direction], frame);
    } else if (direction == 1) {
      send(about.ports[0], frame);
    } else {
      pass_switch(about.medium, link, frame);
    }
  }

  void pass_switch(size_t medium, size_t from, const Frame& frame) {
    Mac target;
    Mac source;
    std::memcpy(target.data(), frame->data(), mac_bytes);
    std::memcpy(source.data(), frame->data() + mac_bytes, mac_bytes);
    learned_[{medium, source}] = from;
    const auto known = learned_.find({medium, target});
    for (size_t link = 0; link < topology_.links.size(); ++link) {
      if (link == from || topology_.links[link].medium != medium ||
          (known != learned_.end() && known->second != link)) {
        continue;
      }
      enter(link, 1, frame);
    }
  }

  void send(size_t port, const Frame& frame) {
    std::deque<Frame>& backlog = ports_[port].backlog;
    if (backlog.size() < backlog_max) {
      backlog.push_back(frame);
    }
    if (backlog.size() == 1) {
      send_backlog(port);
    }
  }

  void send_backlog(size_t port) {
    PortState& state = ports_[port];
    if (!state.connected) {
      // Until the machine has its socket, frames to it are lost as on a real cable.
      const auto* machine = reinterpret_cast<const sockaddr*>(&machines_[port]);
      state.connected = connect(state.socket.get(), machine, sizeof machines_[port]) == 0;
    }
    while (!state.backlog.empty()) {
      const std::string& frame = *state.backlog.front();
      if (state.connected &&
          ::send(state.socket.get(), frame.data(), frame.size(), MSG_DONTWAIT) < 0 &&
          errno == EAGAIN) {
        return;
      }
      state.backlog.pop_front();
    }
  }

  const Topology& topology_;
  SharedLink* links_;
  std::vector<sockaddr_un> machines_;
  std::vector<PortState> ports_;
  std::vector<Instant> queued_until_;
  std::priority_queue<Late> late_;
  std::map<std::pair<size_t, Mac>, size_t> learned_;
  std::array<char, frame_max> buffer_{};
  std::minstd_rand random_{std::random_device{}()};
  SteadyClock clock_;
  uint64_t order_ = 0;
};

}  // namespace

std::filesystem::path forwarder_socket(const std::filesystem::path& directory, size_t port) {
  return directory / fmt::format("port{}", port);
}

std::filesystem::path machine_socket(const std::filesystem::path& directory, size_t port) {
  return directory / fmt::format("nic{}", port);
}

Forwarder::~Forwarder() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (links_ != nullptr) {
    munmap(links_, count_ * sizeof(SharedLink));
  }
}

Result<void> Forwarder::start(const Topology& topology, const std::filesystem::path& directory,
                              const std::function<void()>& in_child) {
  count_ = topology.links.size();
  void* memory = mmap(nullptr, count_ * sizeof(SharedLink), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(Errc::system, "cannot share memory with the forwarder", errno);
  }
  links_ = new (memory) SharedLink[count_];
  std::vector<Fd> sockets;
  std::vector<sockaddr_un> machines;
  for (size_t port = 0; port < topology.ports.size(); ++port) {
    const sockaddr_un own = socket_address(forwarder_socket(directory, port));
    Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) {
      return fail(Errc::system, fmt::format("cannot bind {}", own.sun_path), errno);
    }
    sockets.push_back(std::move(fd));
    machines.push_back(socket_address(machine_socket(directory, port)));
  }
  pid_ = fork();
  if (pid_ < 0) {
    return fail(Errc::system, "cannot start the forwarder", errno);
  }
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    in_child();
    Switchboard(topology, links_, std::move(sockets), std::move(machines)).run();
  }
  return {};
}

void Forwarder::set(size_t link, const LinkState& state) {
  links_[link].carrier = state.carrier;
  links_[link].mtu = state.mtu;
  for (size_t i = 0; i < 2; ++i) {
    links_[link].direction[i].blocked = state.direction[i].blocked;
    links_[link].direction[i].loss = state.direction[i].loss;
    links_[link].direction[i].bits_per_second = state.direction[i].bits_per_second;
  }
}

std::vector<LinkCounters> Forwarder::counters() const {
  std::vector<LinkCounters> all(count_);
  for (size_t link = 0; link < count_; ++link) {
    for (size_t i = 0; i < 2; ++i) {
      const SharedDirection& way = links_[link].direction[i];
      all[link][i] = {way.frames, way.bytes, way.dropped};
    }
  }
  return all;
}

}  // namespace nccl_ha::tools::lab
