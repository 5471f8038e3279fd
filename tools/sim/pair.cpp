#include "tools/sim/pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace nccl_ha::tools {
namespace {

std::atomic<uint64_t> next_domain{1};

std::byte content(uint64_t seed, size_t group, size_t position, size_t at) {
  uint64_t value = seed * 0x9E3779B97F4A7C15 + group * 1000003 + position * 8191 + at;
  value ^= value >> 29;
  value *= 0xBF58476D1CE4E5B9;
  return static_cast<std::byte>(value >> 40);
}

constexpr std::byte untouched{0xA5};

}  // namespace

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Process& to, uint16_t port)
    : world_(world), from_(from), to_(&to) {
  const uint64_t nonce = world.random().next();
  listen_ = std::make_shared<ListenChannel>(nonce);
  auto listener = std::make_unique<Listener>(*to.provider, *to.engine,
                                             world.network().listen(to.address, port), 0, listen_);
  auto actor = to.engine->worker(0).adopt(std::move(listener));
  if (actor) {
    listen_->attach(*actor);
  }
  dial(to.address, port, nonce);
}

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Ip to, uint16_t port)
    : world_(world), from_(from) {
  dial(to, port, 1);
}

SimLink::~SimLink() = default;

void SimLink::dial(sim::Ip to, uint16_t port, uint64_t nonce) {
  SendConnection::Options options;
  for (size_t i = 0; i < from_.addresses.size(); ++i) {
    const sim::Ip there = to_ == nullptr ? to : to_->addresses[i];
    Route route;
    route.to = sim::Endpoint{there, port}.to_sockaddr();
    route.from = sim::Endpoint{from_.addresses[i], 0}.to_sockaddr();
    options.routes.push_back(route);
  }
  options.nonce = nonce;
  Engine& engine = *from_.engine;
  const size_t index = engine.place(-1, 1.0);
  Worker& worker = engine.worker(index);
  options.timeout = std::chrono::milliseconds(worker.context().config().connect_timeout_ms);
  send_ = std::make_shared<SendChannel>(next_domain.fetch_add(1),
                                        fabric::Attachment{0, from_.provider->devices()[0].kind},
                                        worker, engine);
  auto address = worker.open_address(4);
  auto actor = worker.adopt(
      std::make_unique<SendConnection>(*from_.provider, engine, index, send_, std::move(options)));
  if (actor && address) {
    send_->attach(*actor, std::move(*address));
  }
}

bool SimLink::wait_ready(const std::function<void()>& each_round) {
  return world_.run_until(
             [&] {
               if (each_round) {
                 each_round();
               }
               if (!receive_) {
                 receive_ = listen_->take();
               }
               return send_->phase() == Phase::failed ||
                      (receive_ && send_->phase() == Phase::ready);
             },
             std::chrono::seconds(120)) &&
         receive_ && send_->phase() == Phase::ready;
}

std::string SimLink::error() const {
  if (send_->phase() == Phase::failed) {
    return send_->failure().message();
  }
  return receive_ && receive_->phase() == Phase::failed
             ? "receiver: " + receive_->failure().message()
             : std::string("no error");
}

fabric::Registration SimLink::register_send(void* base, size_t bytes) {
  return *from_.provider->add_memory(send_->attachment(), send_->domain(), base, bytes, false);
}

fabric::Registration SimLink::register_receive(void* base, size_t bytes) {
  return *to_->provider->add_memory(receive_->attachment(), receive_->domain(), base, bytes, false);
}

struct Traffic::Group {
  struct Part {
    uint32_t sent = 0;
    int tag = 0;
    std::vector<std::byte> source;
    std::vector<std::byte> target;
    fabric::Registration from;
    fabric::Registration to;
  };
  std::vector<Part> parts;
  std::vector<size_t> order;  ///< in which the sender fills them
  ReceiveRequest* request = nullptr;
};

Traffic::Traffic(SimLink& link, const TransferPlan& plan)
    : link_(link), plan_(plan), random_(plan.seed) {
  for (size_t g = 0; g < plan_.groups; ++g) {
    auto group = std::make_unique<Group>();
    group->parts.resize(1 + random_.below(random_.chance(0.3) ? group_max : 1));
    for (size_t i = 0; i < group->parts.size(); ++i) {
      Group::Part& part = group->parts[i];
      // Tiny, empty and large ones; the receive may be larger than the send.
      const auto bytes = random_.chance(0.1) ? 0U
                         : random_.chance(0.5)
                             ? static_cast<uint32_t>(random_.below(900))
                             : static_cast<uint32_t>(random_.below(plan_.bytes_max));
      part.sent = bytes;
      part.tag = static_cast<int>(i);
      part.source.resize(bytes + 1);
      for (size_t at = 0; at < bytes; ++at) {
        part.source[at] = content(plan_.seed, g, i, at);
      }
      part.target.assign(bytes + 1 + random_.below(100), untouched);
      part.from = link_.register_send(part.source.data(), part.source.size());
      part.to = link_.register_receive(part.target.data(), part.target.size());
      const auto target = reinterpret_cast<uint64_t>(part.target.data());
      link_.world().rdma().counted[target] = target + part.target.size();
      bytes_ += bytes;
      group->order.push_back(i);
    }
    if (random_.chance(0.5)) {
      std::reverse(group->order.begin(), group->order.end());
    }
    groups_.push_back(std::move(group));
  }
}

Traffic::~Traffic() {
  for (auto& group : groups_) {
    for (Group::Part& part : group->parts) {
      if (link_.from().engine) {
        static_cast<void>(link_.from().provider->remove_memory(part.from));
      }
      static_cast<void>(link_.to().provider->remove_memory(part.to));
      link_.world().rdma().counted.erase(reinterpret_cast<uint64_t>(part.target.data()));
    }
  }
}

void Traffic::post_receives() {
  const uint64_t released = plan_.released ? plan_.released() : groups_.size();
  while (receives_posted_ < std::min<uint64_t>(released, groups_.size())) {
    ReceiveRequest* slot = link_.receiver().acquire();
    if (slot == nullptr) {
      return;
    }
    Group& group = *groups_[receives_posted_++];
    slot->count = static_cast<uint8_t>(group.parts.size());
    slot->polled = random_.chance(0.2);
    for (size_t i = 0; i < group.parts.size(); ++i) {
      Group::Part& part = group.parts[i];
      slot->buffers[i] = {part.target.data(), static_cast<uint32_t>(part.target.size()),
                          part.to.remote_key, part.tag};
    }
    link_.receiver().submit(*slot);
    group.request = slot;
  }
}

/// Looks into memory first as callers in inline mode do, but not always.
const CtsEntry* Traffic::place_for(int tag) {
  SendChannel& channel = link_.sender();
  const CtsEntry* place = channel.match(tag);
  if (place == nullptr && channel.server() != nullptr && random_.chance(0.7) &&
      channel.server()->find_place()) {
    ++places_found_;
    place = channel.match(tag);
  }
  return place;
}

void Traffic::post_sends() {
  while (send_group_ < groups_.size()) {
    Group& group = *groups_[send_group_];
    Group::Part& part = group.parts[group.order[send_position_]];
    const CtsEntry* place = place_for(part.tag);
    if (place == nullptr) {
      return;
    }
    SendRequest* request =
        link_.sender().submit(*place, part.source.data(), part.sent, part.from.local_key);
    if (request == nullptr) {
      return;
    }
    open_sends_.push_back(request);
    if (++send_position_ == group.order.size()) {
      send_position_ = 0;
      ++send_group_;
    }
  }
}

void Traffic::check_quiet(const Group& group) {
  for (const Group::Part& part : group.parts) {
    if (std::any_of(part.target.begin(), part.target.end(),
                    [](std::byte b) { return b != untouched; })) {
      wrong_ = "a buffer was written after its receive was done";
    }
  }
}

void Traffic::test_receives() {
  for (; receives_done_ < receives_posted_; ++receives_done_) {
    Group& group = *groups_[receives_done_];
    if (group.request->state.load() != RequestState::done) {
      return;
    }
    for (size_t i = 0; i < group.parts.size(); ++i) {
      Group::Part& part = group.parts[i];
      if (group.request->bytes[i] != part.sent) {
        wrong_ = fmt::format("group {} position {}: {} bytes reported, {} sent", receives_done_, i,
                             group.request->bytes[i], part.sent);
      }
      for (size_t at = 0; at < part.target.size(); ++at) {
        const std::byte expected =
            at < part.sent ? content(plan_.seed, receives_done_, i, at) : untouched;
        if (part.target[at] != expected) {
          wrong_ = fmt::format("group {} position {}: wrong byte at {} of {}", receives_done_, i,
                               at, part.sent);
          break;
        }
      }
      // It is ours again: nothing may touch it any more.
      std::fill(part.target.begin(), part.target.end(), untouched);
    }
    link_.receiver().release(*group.request);
  }
}

bool Traffic::step() {
  if (plan_.each_round) {
    plan_.each_round();
  }
  if (link_.sender().phase() == Phase::failed || link_.receiver().phase() == Phase::failed) {
    wrong_ = "failed: " + link_.error();
  }
  if (!wrong_.empty()) {
    return true;
  }
  link_.sender().ring_what_was_missed();
  link_.receiver().ring_what_was_missed();
  post_receives();
  post_sends();
  test_receives();
  std::erase_if(open_sends_, [&](SendRequest* request) {
    if (request->state.load() != RequestState::done) {
      return false;
    }
    link_.sender().release(*request);
    return true;
  });
  return receives_done_ == groups_.size() && open_sends_.empty();
}

std::string Traffic::outcome() {
  if (wrong_.empty() && (receives_done_ != groups_.size() || !open_sends_.empty())) {
    wrong_ = fmt::format("unfinished: {} of {} groups received, {} sends open", receives_done_,
                         groups_.size(), open_sends_.size());
  }
  for (const auto& group : groups_) {
    if (wrong_.empty()) {
      check_quiet(*group);
    }
  }
  return wrong_;
}

SimPair::SimPair(uint64_t seed, const sim::Link& conditions, const Config& config,
                 const SimCables& cables)
    : world_(seed) {
  world_.network().all = conditions;
  for (uint8_t i = 1; i <= 2; ++i) {
    std::vector<sim::Ip> addresses;
    for (size_t rail = 0; rail < cables.rails + (cables.spare ? 1 : 0); ++rail) {
      addresses.push_back(sim::ip(10, static_cast<uint8_t>(rail), 0, i));
    }
    hosts_.push_back(*world_.add_process(addresses, config, cables.rdma ? cables.rails : 0));
  }
}

bool SimPair::connect(const std::function<void()>& each_round) {
  link_ = std::make_unique<SimLink>(world_, *hosts_[0], *hosts_[1], 5000);
  return link_->wait_ready(each_round);
}

void SimPair::dial(sim::Ip to, uint16_t port) {
  link_ = std::make_unique<SimLink>(world_, *hosts_[0], to, port);
}

std::string SimPair::transfer(const TransferPlan& plan, Duration limit) {
  Traffic traffic(*link_, plan);
  bytes_wanted_ = traffic.bytes();
  static_cast<void>(world_.run_until([&] { return traffic.step(); }, limit));
  places_found_ = traffic.places_found();
  return traffic.outcome();
}

void SimPair::set_links(const sim::Link& there, const sim::Link& back, size_t rail) {
  const sim::Ip from = sender().addresses[rail];
  const sim::Ip to = receiver().addresses[rail];
  world_.network().set_link(from, to, there);
  world_.network().set_link(to, from, back);
}

void SimPair::post_receives(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    auto& bytes = memory_.emplace_back(1 << 20);
    ReceiveRequest* slot = link_->receiver().acquire();
    slot->count = 1;
    slot->buffers[0] = {bytes.data(), static_cast<uint32_t>(bytes.size()),
                        link_->register_receive(bytes.data(), bytes.size()).remote_key, 0};
    link_->receiver().submit(*slot);
  }
}

bool SimPair::post_send(size_t bytes) {
  auto& source = memory_.emplace_back(bytes);
  const auto from = link_->register_send(source.data(), bytes);
  const CtsEntry* place = nullptr;
  return world_.run_until([&] { return (place = link_->sender().match(0)) != nullptr; },
                          std::chrono::seconds(5)) &&
         link_->sender().submit(*place, source.data(), static_cast<uint32_t>(bytes),
                                from.local_key) != nullptr;
}

}  // namespace nccl_ha::tools
