// The second side of the contract suite in another machine.
//
// The suite compares buffers of both sides directly, so the memory of the far side is mirrored:
// what the test changes here goes there before anything else happens, and what arrives there comes
// here with the next turn, before the completions that tell of it.  Requests and answers are CBOR
// objects behind their length.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/path_harness.h"

namespace nccl_ha::test {
namespace {

using fabric::Completion;
using fabric::PathState;
using nlohmann::json;

constexpr uint32_t message_max = 64 << 20;
constexpr auto connect_limit = std::chrono::seconds(60);

void write_all(int fd, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) {
      throw std::runtime_error("the other side of the contract suite is gone");
    }
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

bool read_all(int fd, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, 0);
    if (got <= 0) {
      return false;
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

void send_message(int fd, const json& message) {
  const std::vector<uint8_t> bytes = json::to_cbor(message);
  const auto length = static_cast<uint32_t>(bytes.size());
  write_all(fd, &length, sizeof length);
  write_all(fd, bytes.data(), bytes.size());
}

/// Discarded at the end of the stream.
json receive_message(int fd) {
  uint32_t length = 0;
  if (!read_all(fd, &length, sizeof length) || length > message_max) {
    return json(json::value_t::discarded);
  }
  std::vector<uint8_t> bytes(length);
  return read_all(fd, bytes.data(), length) ? json::from_cbor(bytes, true, false)
                                            : json(json::value_t::discarded);
}

json blob(const std::byte* from, size_t bytes) {
  const auto* at = reinterpret_cast<const uint8_t*>(from);
  return json::binary({at, at + bytes});
}

/// A piece of the far side's memory, and what both sides last agreed that it holds.
struct Region {
  std::byte* bytes = nullptr;
  size_t length = 0;
  std::vector<std::byte> agreed;
};

/// What differs from what was agreed, which is then agreed.
json changes(std::map<uint64_t, Region>& regions) {
  json out = json::array();
  for (auto& [id, region] : regions) {
    if (std::memcmp(region.bytes, region.agreed.data(), region.length) == 0) {
      continue;
    }
    const auto [first, ignored] =
        std::mismatch(region.agreed.begin(), region.agreed.end(), region.bytes);
    const auto offset = static_cast<size_t>(first - region.agreed.begin());
    out.push_back({{"id", id},
                   {"offset", offset},
                   {"bytes", blob(region.bytes + offset, region.length - offset)}});
    std::copy(region.bytes + offset, region.bytes + region.length,
              region.agreed.begin() + static_cast<ptrdiff_t>(offset));
  }
  return out;
}

void take_changes(std::map<uint64_t, Region>& regions, const json& changed) {
  for (const json& one : changed) {
    Region& region = regions.at(one["id"].get<uint64_t>());
    const json::binary_t& bytes = one["bytes"].get_binary();
    const size_t offset = one["offset"];
    if (offset + bytes.size() > region.length) {
      throw std::runtime_error("a change is larger than its region");
    }
    std::memcpy(region.bytes + offset, bytes.data(), bytes.size());
    std::memcpy(region.agreed.data() + offset, bytes.data(), bytes.size());
  }
}

int connect_to(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw std::runtime_error("cannot resolve " + host);
  }
  SteadyClock clock;
  const Instant end = clock.now() + connect_limit;
  int fd = -1;
  // The other machine may still be on its way up.
  while (fd < 0 && clock.now() < end) {
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  if (fd < 0) {
    throw std::runtime_error("cannot connect to " + host);
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

/// The near side's view of the far one.
class Remote {
 public:
  Remote(const std::string& host, uint16_t port) : fd_(connect_to(host, port)) {}
  ~Remote() { close(fd_); }
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  /// Sends what changed here, then the request.
  json ask(json request) {
    request["memory"] = changes(regions_);
    send_message(fd_, request);
    json answer = receive_message(fd_);
    if (!answer.is_object()) {
      throw std::runtime_error("the other side of the contract suite is gone");
    }
    if (answer.contains("throws")) {
      throw std::runtime_error(answer["throws"].get<std::string>());
    }
    state_ = static_cast<PathState>(answer["state"].get<int>());
    cause_ = static_cast<fabric::CompletionStatus>(answer["cause"].get<int>());
    return answer;
  }

  PathState state() const { return state_; }
  fabric::CompletionStatus cause() const { return cause_; }

  PathKeys add(void* base, size_t bytes, bool foreign) {
    const uint64_t id = next_++;
    Region region{static_cast<std::byte*>(base), bytes, {}};
    region.agreed.assign(region.bytes, region.bytes + bytes);
    const json answer = ask(
        {{"op", "add"}, {"id", id}, {"foreign", foreign}, {"bytes", blob(region.bytes, bytes)}});
    base_there_[id] = answer["address"];
    regions_[id] = std::move(region);
    return {answer["local"], answer["remote"], id};
  }
  void remove(const PathKeys& keys) {
    regions_.erase(keys.handle);
    ask({{"op", "remove"}, {"id", keys.handle}});
  }
  /// Where a byte of the mirror is in the other machine.
  uint64_t address_there(const void* here) const {
    for (const auto& [id, region] : regions_) {
      const auto* at = static_cast<const std::byte*>(here);
      if (at >= region.bytes && at <= region.bytes + region.length) {
        return base_there_.at(id) + static_cast<uint64_t>(at - region.bytes);
      }
    }
    return reinterpret_cast<uint64_t>(here);
  }
  void take(const json& changed) { take_changes(regions_, changed); }

 private:
  int fd_;
  std::map<uint64_t, Region> regions_;
  std::map<uint64_t, uint64_t> base_there_;
  uint64_t next_ = 1;
  PathState state_ = PathState::idle;
  fabric::CompletionStatus cause_ = fabric::CompletionStatus::ok;
};

json gathers_json(const Remote& remote, const fabric::Gather* gathers, uint32_t count) {
  json out = json::array();
  for (uint32_t i = 0; i < count; ++i) {
    out.push_back({{"address", remote.address_there(gathers[i].address)},
                   {"length", gathers[i].length},
                   {"key", gathers[i].key}});
  }
  return out;
}

/// A path of the far side.
class RemotePath final : public fabric::Path {
 public:
  explicit RemotePath(Remote& remote) : remote_(remote) {}
  ~RemotePath() override {
    try {
      remote_.ask({{"op", "destroy"}});
    } catch (const std::exception&) {
      // It is gone, and the test has failed for it elsewhere.
    }
  }
  std::span<const std::byte> local_address() const override {
    const json::binary_t bytes = remote_.ask({{"op", "address"}})["bytes"].get_binary();
    address_.assign(reinterpret_cast<const std::byte*>(bytes.data()),
                    reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
    return address_;
  }
  Result<void> connect(std::span<const std::byte> peer) override {
    const json answer = remote_.ask({{"op", "connect"}, {"bytes", blob(peer.data(), peer.size())}});
    const std::string error = answer["error"];
    return error.empty() ? Result<void>() : nccl_ha::fail(Errc::invalid_argument, error);
  }
  PathState state() const override { return remote_.state(); }
  fabric::CompletionStatus cause() const override { return remote_.cause(); }
  Errc post_write(const fabric::WritePost& post) override {
    return posted({{"op", "write"},
                   {"id", post.id},
                   {"gathers", gathers_json(remote_, post.gathers, post.gather_count)},
                   {"remote_address", post.remote_address},
                   {"remote_key", post.remote_key},
                   {"has_immediate", post.has_immediate},
                   {"immediate", post.immediate},
                   {"unsignaled", post.unsignaled},
                   {"last", post.last},
                   {"host_memory", post.host_memory}});
  }
  Errc post_receive() override { return posted({{"op", "receive"}}); }
  void fail(const Error& why) override { remote_.ask({{"op", "fail"}, {"text", why.what}}); }
  std::string describe() const override { return "in another machine"; }

 private:
  Errc posted(json request) {
    return static_cast<Errc>(remote_.ask(std::move(request))["code"].get<int>());
  }
  Remote& remote_;
  mutable std::vector<std::byte> address_;
};

/// The near side's own path; it says where the far side's memory really is.
class NearPath final : public fabric::Path {
 public:
  NearPath(Remote& remote, std::unique_ptr<fabric::Path> path)
      : remote_(remote), path_(std::move(path)) {}
  std::span<const std::byte> local_address() const override { return path_->local_address(); }
  Result<void> connect(std::span<const std::byte> peer) override { return path_->connect(peer); }
  PathState state() const override { return path_->state(); }
  fabric::CompletionStatus cause() const override { return path_->cause(); }
  Errc post_write(const fabric::WritePost& post) override {
    remote_.ask({{"op", "sync"}});
    fabric::WritePost there = post;
    there.remote_address =
        remote_.address_there(reinterpret_cast<const void*>(post.remote_address));
    return path_->post_write(there);
  }
  Errc post_receive() override { return path_->post_receive(); }
  void fail(const Error& why) override { path_->fail(why); }
  std::string describe() const override { return path_->describe(); }

 private:
  Remote& remote_;
  std::unique_ptr<fabric::Path> path_;
};

class RemoteSide final : public PathSide {
 public:
  RemoteSide(std::shared_ptr<Remote> remote, const std::string& provider)
      : remote_(std::move(remote)) {
    remote_->ask({{"op", "open"}, {"provider", provider}});
  }
  std::unique_ptr<PathEnd> make_end(fabric::PathOptions options) override {
    auto end = std::make_unique<PathEnd>();
    end_ = end.get();
    remote_->ask({{"op", "end"},
                  {"writes_max", options.writes_max},
                  {"receives_max", options.receives_max},
                  {"active", options.active}});
    end->path = std::make_unique<RemotePath>(*remote_);
    end->add = [remote = remote_](void* base, size_t bytes) {
      return remote->add(base, bytes, false);
    };
    end->add_foreign = [remote = remote_](void* base, size_t bytes) {
      return remote->add(base, bytes, true);
    };
    end->remove = [remote = remote_](PathKeys keys) { remote->remove(keys); };
    return end;
  }
  void turn() override {
    const json answer = remote_->ask({{"op", "turn"}});
    remote_->take(answer["memory"]);
    if (end_ == nullptr || !end_->path) {
      return;
    }
    for (const json& one : answer["completions"]) {
      Completion completion;
      completion.id = one["id"];
      completion.path = end_->path.get();
      completion.kind = static_cast<fabric::CompletionKind>(one["kind"].get<int>());
      completion.status = static_cast<fabric::CompletionStatus>(one["status"].get<int>());
      completion.has_immediate = one["has_immediate"];
      completion.immediate = one["immediate"];
      completion.bytes = one["bytes"];
      end_->owner.on_completion(completion);
    }
    for (const json& one : answer["states"]) {
      end_->owner.on_path_state(*end_->path, static_cast<PathState>(one.get<int>()),
                                nccl_ha::fail(Errc::remote, answer["error"]));
    }
  }
  void cut() override { remote_->ask({{"op", "cut"}}); }

 private:
  std::shared_ptr<Remote> remote_;
  PathEnd* end_ = nullptr;
};

/// The near side over a real provider, with the far side's addresses translated.
class NearSide final : public PathSide {
 public:
  NearSide(std::shared_ptr<Remote> remote, std::unique_ptr<PathSide> side)
      : remote_(std::move(remote)), side_(std::move(side)) {}
  std::unique_ptr<PathEnd> make_end(fabric::PathOptions options) override {
    auto end = side_->make_end(options);
    end->path = std::make_unique<NearPath>(*remote_, std::move(end->path));
    return end;
  }
  void turn() override { side_->turn(); }
  bool lossy() const override { return side_->lossy(); }
  fabric::CompletionStatus reported(fabric::CompletionStatus status) const override {
    return side_->reported(status);
  }
  bool shares_memory() const override { return side_->shares_memory(); }
  void cut() override { side_->cut(); }

 private:
  std::shared_ptr<Remote> remote_;
  std::unique_ptr<PathSide> side_;
};

/// The far side: carries out what it is asked and turns in between.
class Server {
 public:
  explicit Server(int fd) : fd_(fd) {}

  /// False: the whole service is to end.
  bool run() {
    while (true) {
      pollfd wait{fd_, POLLIN, 0};
      if (side_ && poll(&wait, 1, 0) == 0) {
        side_->turn();
        continue;
      }
      const json request = receive_message(fd_);
      if (!request.is_object()) {
        return true;
      }
      const std::string op = request["op"];
      if (op == "quit") {
        return false;
      }
      json answer = json::object();
      try {
        take_changes(regions_, request["memory"]);
        answer = serve(op, request);
      } catch (const std::exception& error) {
        answer["throws"] = error.what();
      }
      answer["state"] =
          static_cast<int>(end_ && end_->path ? end_->path->state() : PathState::error);
      answer["cause"] = static_cast<int>(end_ && end_->path ? end_->path->cause()
                                                            : fabric::CompletionStatus::flushed);
      send_message(fd_, answer);
    }
  }

 private:
  json serve(const std::string& op, const json& request) {
    if (op == "open") {
      side_ = make_rdma_side(request["provider"], 1);
      return json::object();
    }
    if (op == "end") {
      fabric::PathOptions options;
      options.writes_max = request["writes_max"];
      options.receives_max = request["receives_max"];
      options.active = request["active"];
      end_ = side_->make_end(options);
      return json::object();
    }
    if (op == "add") {
      return add(request);
    }
    if (op == "turn") {
      return turn();
    }
    if (op == "remove") {
      const auto found = memory_.find(request["id"].get<uint64_t>());
      end_->remove(found->second.keys);
      regions_.erase(found->first);
      memory_.erase(found);
      return json::object();
    }
    if (op == "destroy") {
      end_->path.reset();
      return json::object();
    }
    if (op == "cut") {
      side_->cut();
      return json::object();
    }
    return op == "sync" ? json::object() : on_path(op, request);
  }

  json on_path(const std::string& op, const json& request) {
    fabric::Path& path = *end_->path;
    if (op == "address") {
      const auto bytes = path.local_address();
      return {{"bytes", blob(bytes.data(), bytes.size())}};
    }
    if (op == "connect") {
      const json::binary_t& bytes = request["bytes"].get_binary();
      const auto connected =
          path.connect(std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
      return {{"error", connected ? "" : connected.error().message()}};
    }
    if (op == "fail") {
      path.fail(nccl_ha::fail(Errc::closed, request["text"]));
      return json::object();
    }
    if (op == "receive") {
      return {{"code", static_cast<int>(path.post_receive())}};
    }
    fabric::WritePost post;
    post.id = request["id"];
    for (const json& gather : request["gathers"]) {
      post.gathers[post.gather_count++] = {
          reinterpret_cast<const std::byte*>(gather["address"].get<uint64_t>()), gather["length"],
          gather["key"]};
    }
    post.remote_address = request["remote_address"];
    post.remote_key = request["remote_key"];
    post.has_immediate = request["has_immediate"];
    post.immediate = request["immediate"];
    post.unsignaled = request["unsignaled"];
    post.last = request["last"];
    post.host_memory = request["host_memory"];
    return {{"code", static_cast<int>(path.post_write(post))}};
  }

  json add(const json& request) {
    const json::binary_t& content = request["bytes"].get_binary();
    const auto* from = reinterpret_cast<const std::byte*>(content.data());
    const uint64_t id = request["id"];
    Memory& memory = memory_[id];
    memory.bytes.assign(from, from + content.size());
    memory.keys = request["foreign"].get<bool>()
                      ? end_->add_foreign(memory.bytes.data(), memory.bytes.size())
                      : end_->add(memory.bytes.data(), memory.bytes.size());
    regions_[id] = {memory.bytes.data(), memory.bytes.size(), memory.bytes};
    return {{"local", memory.keys.local},
            {"remote", memory.keys.remote},
            {"address", reinterpret_cast<uint64_t>(memory.bytes.data())}};
  }

  json turn() {
    side_->turn();
    json completions = json::array();
    for (const Completion& c : end_->owner.completions) {
      completions.push_back({{"id", c.id},
                             {"kind", static_cast<int>(c.kind)},
                             {"status", static_cast<int>(c.status)},
                             {"has_immediate", c.has_immediate},
                             {"immediate", c.immediate},
                             {"bytes", c.bytes}});
    }
    json states = json::array();
    for (const PathState state : end_->owner.states) {
      states.push_back(static_cast<int>(state));
    }
    end_->owner.completions.clear();
    end_->owner.states.clear();
    // After the completions: what they tell of is in memory by now.
    return {{"memory", changes(regions_)},
            {"completions", std::move(completions)},
            {"states", std::move(states)},
            {"error", end_->owner.last_error.what}};
  }

  struct Memory {
    std::vector<std::byte> bytes;
    PathKeys keys;
  };
  int fd_;
  std::unique_ptr<PathSide> side_;
  std::unique_ptr<PathEnd> end_;
  std::map<uint64_t, Memory> memory_;
  std::map<uint64_t, Region> regions_;
};

}  // namespace

std::unique_ptr<PathHarness> make_remote_harness(const std::string& provider,
                                                 const std::string& host, uint16_t port) {
  auto remote = std::make_shared<Remote>(host, port);
  auto near = std::make_unique<NearSide>(remote, make_rdma_side(provider, 0));
  return std::make_unique<PairHarness>(std::move(near),
                                       std::make_unique<RemoteSide>(remote, provider));
}

int serve_side(uint16_t port) {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listening, 4) != 0) {
    return 1;
  }
  bool more = true;
  while (more) {
    const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      continue;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    more = Server(fd).run();
    close(fd);
  }
  close(listening);
  return 0;
}

void end_served_side(const std::string& host, uint16_t port) {
  const int fd = connect_to(host, port);
  send_message(fd, {{"op", "quit"}, {"memory", json::array()}});
  close(fd);
}

}  // namespace nccl_ha::test
