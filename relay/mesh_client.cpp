#include "relay/mesh_client.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "relay/discovery.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/secret.h"

namespace nccl_ha::relay {
namespace {

constexpr int query_hop_limit = 255;  // LinkSockets drops what has less
constexpr size_t packet_bytes = 2048;
constexpr int64_t patience_questions = 16;

Neighbour neighbour_of(const NeighboursPacket::Entry& entry) {
  Neighbour made;
  made.node = entry.node;
  made.interface = entry.interface;
  made.peer_interface = entry.peer_interface;
  made.key = entry.key;
  made.two_way = true;
  IpAddress address = entry.address;
  address.scope_id = address.link_local() ? entry.interface : 0;
  made.address.length = address.to_sockaddr(entry.port, &made.address.storage);
  return made;
}

/// False: nobody has the port.
template <class Body>
bool send_packet(int fd, const Body& body) {
  const auto bytes = encode(DiscoveryPacket{NodeId{kernel_secrets().draw().told() | 1}, 1, body});
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0 || errno != ECONNREFUSED;
}

}  // namespace

std::shared_ptr<const MeshView> MeshAnswer::take(std::span<const std::byte> bytes) {
  auto packet = decode_packet(bytes);
  if (!packet) {
    return nullptr;
  }
  if (const auto* neighbours = std::get_if<NeighboursPacket>(&packet->body)) {
    missing_ = neighbours->states;
    states_.clear();
    first_ = std::move(*packet);
  } else if (auto* states = std::get_if<StatesPacket>(&packet->body);
             states != nullptr && first_ && missing_ > 0 && packet->sender == first_->sender &&
             packet->incarnation == first_->incarnation) {
    --missing_;
    if (states_.size() + states->states.size() > Discovery::nodes_max) {
      first_.reset();  // no answer of a relay node of ours
      states_.clear();
      return nullptr;
    }
    states_.insert(states_.end(), std::make_move_iterator(states->states.begin()),
                   std::make_move_iterator(states->states.end()));
  } else {
    return nullptr;
  }
  if (missing_ > 0) {
    return nullptr;
  }
  auto view = std::make_shared<MeshView>();
  view->self = first_->sender;
  view->topology = Topology::make(std::exchange(states_, {}));
  const auto& neighbours = std::get<NeighboursPacket>(first_->body);
  view->rests = neighbours.rests;
  view->open = neighbours.open;
  view->of_job = neighbours.of_job;
  view->looks = neighbours.looks;
  view->crowded = neighbours.crowded;
  view->key_name = neighbours.key_name;
  for (const auto& entry : neighbours.entries) {
    view->neighbours.push_back(neighbour_of(entry));
  }
  first_.reset();
  return view;
}

Result<int> open_query_socket(uint16_t port) {
  const int fd =
      make_fd([] { return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (fd < 0) {
    return fail(Errc::system, "cannot open a socket to ask the relay node", errno);
  }
  // A thousand hosts are a hundred packets at once.
  const int bytes = 1 << 20;
  static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
  static_cast<void>(setsockopt(fd, IPPROTO_IP, IP_TTL, &query_hop_limit, sizeof query_hop_limit));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    const int error = errno;
    close_fd(fd);
    return fail(Errc::system, "cannot ask the relay node of this host", error);
  }
  return fd;
}

bool send_query(int fd, bool seeks) { return send_packet(fd, QueryPacket{seeks}); }

void ask_for_place(uint16_t port) {
  if (const auto fd = open_query_socket(port)) {
    static_cast<void>(send_packet(*fd, HandOverPacket{}));
    close_fd(*fd);
  }
}

Result<std::shared_ptr<const MeshView>> ask_relay_node(uint16_t port, Duration patience) {
  auto fd = open_query_socket(port);
  if (!fd) {
    return fd.error();
  }
  SteadyClock clock;
  const Instant end = clock.now() + patience;
  MeshAnswer answer;
  std::shared_ptr<const MeshView> view;
  bool there = send_query(*fd);
  for (Instant now = clock.now(); there && !view && now < end; now = clock.now()) {
    pollfd waiting{*fd, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now).count();
    if (poll(&waiting, 1, static_cast<int>(left)) <= 0) {
      continue;
    }
    std::array<std::byte, packet_bytes> bytes;
    const ssize_t got = recv(*fd, bytes.data(), bytes.size(), 0);
    there = got >= 0 || errno == EAGAIN || errno == EINTR;
    if (got >= 0) {
      view = answer.take(std::span(bytes).first(static_cast<size_t>(got)));
    }
  }
  close_fd(*fd);
  if (!view && !there) {
    return fail(Errc::remote, fmt::format("nobody on this host has UDP port {}", port));
  }
  if (!view) {
    return fail(Errc::timed_out,
                fmt::format("another process of this host uses UDP port {} (HA_NCCL_MESH_PORT) and "
                            "does not tell what it knows: is it a relay node of nccl-ha?",
                            port));
  }
  return view;
}

MeshClient::~MeshClient() { stop(); }

void MeshClient::start(Context& context) {
  context_ = &context;
  timer_.bind([](void* self) { static_cast<MeshClient*>(self)->on_timer(); }, this);
  if (options_.tickets != nullptr || options_.job != nullptr) {
    asker_.emplace(options_.port, context.secrets());
  }
  on_timer();
}

void MeshClient::on(const Message& message) {
  if (message.kind == need) {
    options_.seeks = message.arg != 0;
    on_timer();
  }
}

/// What fails now, for want of descriptors, may not fail next time.
void MeshClient::open() {
  auto fd = open_query_socket(options_.port);
  if (!fd) {
    NHA_LOG_WARN_LIMITED("what the relay node of this host learns is not heard: {}",
                         fd.error().message());
    return;
  }
  if (auto watch = context_->streams().watch_fd(*fd, this)) {
    fd_ = *fd;
    watch_ = std::move(*watch);
  } else {
    NHA_LOG_WARN_LIMITED("what the relay node of this host learns is not heard: {}",
                         watch.error().message());
    close_fd(*fd);
  }
}

void MeshClient::on_readable(int fd) {
  std::array<std::byte, packet_bytes> bytes;
  for (ssize_t got = 0; (got = recv(fd, bytes.data(), bytes.size(), 0)) >= 0;) {
    if (auto view = answer_.take(std::span(bytes).first(static_cast<size_t>(got)))) {
      unanswered_ = 0;
      if (!speaks_for_us(*view)) {
        continue;
      }
      rests_ = view->rests;
      if (options_.job != nullptr) {
        options_.job->set_open(view->open);
      }
      options_.board->publish(std::move(view));
    }
  }
  if (errno == ECONNREFUSED) {
    unanswered_ = std::max(unanswered_, options_.dead / options_.interval + 1);  // nobody is there
  }
}

/// A process of another job, or of another user's, knows the ways of its own hosts only.
bool MeshClient::speaks_for_us(const MeshView& view) const {
  constexpr int64_t unlent_max = 4;
  if (!view.of_job) {
    return true;
  }
  if (options_.key == nullptr) {
    return view.key_name == 0 && unlent_ <= unlent_max;
  }
  bool same = false;
  options_.key->current()->each([&](uint32_t number, const KeyRing::Key& key) {
    (void)number;
    same = same || name_of_key(key) == view.key_name;
  });
  return same;
}

void MeshClient::on_timer() {
  // Whoever has had nothing to tell for long is asked less often.
  const bool slow = (rests_ || unanswered_ > patience_questions) && !options_.seeks;
  context_->timers().arm(timer_, context_->now() + options_.interval * (slow ? resting_factor : 1));
  // Questions are counted, not time: what this thread has slept through, nobody was asked.
  const bool silent = unanswered_ * options_.interval >= options_.dead || (slow && unanswered_ > 1);
  if (silent && options_.on_silence && options_.on_silence(*context_)) {
    stop();
    context_->remove_actor(id());
    return;
  }
  if (fd_ < 0) {
    open();
  }
  if (fd_ >= 0) {
    ++unanswered_;
    static_cast<void>(send_query(fd_, options_.seeks));
  }
  if (asker_) {
    ask_office();
  }
}

/// The answer is looked at with the next question: it seldom differs.
void MeshClient::ask_office() {
  const TicketAsker::Answers answers = asker_->take();
  if (answers.ticket && options_.tickets != nullptr) {
    options_.tickets->add(*answers.ticket);
  }
  if (answers.lent && options_.job != nullptr) {
    unlent_ = 0;
    options_.job->lend(geteuid(), *answers.lent, context_->now());
  }
  if (options_.tickets != nullptr) {
    static_cast<void>(asker_->ask());
  }
  if (options_.job != nullptr) {
    ++unlent_;
    static_cast<void>(asker_->lend(options_.job->own()));
  }
}

void MeshClient::stop() {
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
  watch_.reset();
  close_fd(std::exchange(fd_, -1));
  asker_.reset();
}

}  // namespace nccl_ha::relay
