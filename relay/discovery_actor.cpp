#include "relay/discovery_actor.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "runtime/base/log.h"

namespace nccl_ha::relay {
namespace {

/// What discovery and its sockets need to know of an interface.
bool same_interfaces(const std::vector<fabric::NetInterface>& one,
                     const std::vector<fabric::NetInterface>& other) {
  return std::equal(
      one.begin(), one.end(), other.begin(), other.end(),
      [](const fabric::NetInterface& a, const fabric::NetInterface& b) {
        const auto same_address = [](const IpAddress& x, const IpAddress& y) {
          return x.family == y.family && x.bytes == y.bytes && x.prefix_len == y.prefix_len;
        };
        return a.ifindex == b.ifindex && a.name == b.name && a.speed_mbps == b.speed_mbps &&
               std::equal(a.addresses.begin(), a.addresses.end(), b.addresses.begin(),
                          b.addresses.end(), same_address);
      });
}

}  // namespace

DiscoveryActor::~DiscoveryActor() {
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
}

void DiscoveryActor::start(Context& context) {
  context_ = &context;
  timer_.bind([](void* self) { static_cast<DiscoveryActor*>(self)->on_timer(); }, this);
  discovery_.emplace(options_.identity, options_.timing, context.random().next(), *options_.links);
  for (const int fd : options_.links->wait_fds()) {
    if (fd < 0) {
      continue;
    }
    auto watch = context.streams().watch_fd(fd, this);
    if (watch) {
      watches_.push_back(std::move(*watch));
    } else {
      NHA_LOG_WARN("discovery hears nobody: {}", watch.error().message());
    }
  }
  if (auto watch = context.streams().watch_links(this)) {
    link_watch_ = std::move(*watch);
  }
  look_at_key();
  use_job_keys();
  look_at_interfaces();
  go_on();
}

/// Communicators come and go while the process runs.
void DiscoveryActor::use_job_keys() {
  if (options_.key == nullptr && options_.job != nullptr) {
    discovery_->set_keys(
        options_.job->current(), context_->now(),
        options_.job->open() ? Discovery::KeysOf::job_or_nobody : Discovery::KeysOf::job);
  }
}

void DiscoveryActor::look_at_key() {
  if (options_.key == nullptr) {
    return;
  }
  if (auto read = options_.key->refresh(); !read) {
    NHA_LOG_WARN_LIMITED("the keys of before stay: {}", read.error().message());
  }
  discovery_->set_keys(options_.key->current(), context_->now());
}

void DiscoveryActor::look_at_interfaces() {
  look_due_ = context_->now() + look_apart;
  auto now = options_.interfaces();
  if (!now) {
    NHA_LOG_WARN_LIMITED("the cables of before are taken for there: {}", now.error().message());
    return;
  }
  if (same_interfaces(*now, own_)) {
    return;
  }
  own_ = std::move(*now);
  options_.links->use(own_);
  std::vector<IpAddress> addresses;
  for (const fabric::NetInterface& one : own_) {
    addresses.insert(addresses.end(), one.addresses.begin(), one.addresses.end());
  }
  discovery_->set_addresses(std::move(addresses), context_->now());
  discovery_->set_interfaces(as_mesh_interfaces(own_), context_->now());
}

void DiscoveryActor::on(const Message& message) {
  if (message.kind == relays) {
    discovery_->set_relays(message.arg != 0, context_->now());
    go_on();
  } else if (message.kind == need) {
    discovery_->need(message.arg != 0, context_->now());
    go_on();
  } else if (message.kind == leave) {
    stop();
    context_->remove_actor(id());
  }
}

void DiscoveryActor::on_link(const std::string& interface, bool up) {
  (void)interface;
  (void)up;
  look_due_ = context_->now();  // once for all that is told together
  context_->timers().arm(timer_, look_due_);
}

void DiscoveryActor::on_readable(int fd) {
  (void)fd;
  use_job_keys();
  options_.links->receive(*this, discovery_packets_per_turn);
  answer_askers();
  go_on();
}

void DiscoveryActor::on_packet(uint32_t interface, const fabric::SocketAddress& from,
                               bool asked_here, std::span<const std::byte> packet) {
  if (!asked_here) {
    const uint64_t before = discovery_->seal_counts().forged;
    discovery_->receive(interface, from, packet, context_->now());
    if (options_.key != nullptr && !options_.identity.looks &&
        discovery_->seal_counts().forged != before) {
      tell_forged(interface, from);
    }
    return;
  }
  const auto asked = decode_packet(packet);
  if (!asked) {
    return;
  }
  if (std::holds_alternative<HandOverPacket>(asked->body) && options_.on_hand_over &&
      !handing_over_) {
    handing_over_ = options_.on_hand_over();
    options_.on_takes_part = handing_over_ ? nullptr : options_.on_takes_part;
  }
  const auto* query = std::get_if<QueryPacket>(&asked->body);
  if (query != nullptr && query->seeks) {
    discovery_->need_now(context_->now());
  }
  if (query != nullptr && std::find(askers_.begin(), askers_.end(), from) == askers_.end()) {
    askers_.push_back(from);
  }
}

/// Jobs without a key hear each other as well, and that is nothing to tell of.
void DiscoveryActor::tell_forged(uint32_t interface, const fabric::SocketAddress& from) const {
  const auto own =
      std::ranges::find(own_, static_cast<int>(interface), &fabric::NetInterface::ifindex);
  const auto address = IpAddress::from_sockaddr(from.get());
  NHA_LOG_WARN_LIMITED(
      "{} on {} has no key of ours, or none at all, and is no neighbour: HA_NCCL_MESH_KEY_FILE has "
      "to "
      "have the same keys on all hosts",
      address ? address->text() : "a host", own == own_.end() ? "a cable" : own->name);
}

void DiscoveryActor::answer_askers() {
  const auto askers = std::exchange(askers_, {});
  if (askers.empty() || handing_over_) {
    return;
  }
  const auto answers = discovery_->answer_query(context_->now());
  for (const fabric::SocketAddress& asker : askers) {
    for (const auto& answer : answers) {
      options_.links->answer(asker, answer);
    }
  }
}

void DiscoveryActor::on_timer() {
  if (look_due_ <= context_->now()) {
    look_at_key();
    look_at_interfaces();
  }
  go_on();
}

void DiscoveryActor::go_on() {
  const Instant now = context_->now();
  use_job_keys();
  discovery_->tick(now);
  // Two hosts have nobody to relay for.
  if (options_.on_takes_part && discovery_->look().takes_part() &&
      discovery_->states().size() > 2) {
    std::exchange(options_.on_takes_part, nullptr)(*context_);
  }
  publish();
  context_->timers().arm(timer_, std::min(discovery_->next_deadline(), look_due_));
}

void DiscoveryActor::publish() {
  const uint64_t neighbours = discovery_->neighbours().revision();
  const bool rests = discovery_->look().rests();
  const bool looks = !rests && !discovery_->look().takes_part();
  if (published_ == discovery_->revision() && neighbours_published_ == neighbours &&
      rested_ == rests && looked_ == looks) {
    return;
  }
  rested_ = rests;
  looked_ = looks;
  published_ = discovery_->revision();
  neighbours_published_ = neighbours;
  auto view = std::make_shared<MeshView>();
  view->revision = published_;
  view->self = options_.identity.node;
  view->rests = rests;
  view->looks = looks;
  view->crowded = discovery_->look().crowded();
  if (!rests) {
    view->topology = discovery_->topology(context_->now());
  }
  for (const Neighbour& one : discovery_->neighbours().all()) {
    if (one.two_way) {
      view->neighbours.push_back(one);
    }
  }
  options_.board->publish(std::move(view));
}

/// What it was about to say it says with the next hello.
void DiscoveryActor::on_no_memory() {
  if (discovery_) {
    context_->timers().arm(timer_, context_->now() + options_.timing.neighbours.hello);
  }
}

void DiscoveryActor::stop() {
  context_->timers().cancel(timer_);
  discovery_->leave(context_->now());
  watches_.clear();
  link_watch_.reset();
}

}  // namespace nccl_ha::relay
