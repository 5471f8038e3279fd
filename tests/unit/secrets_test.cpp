// What an unknown peer must not guess, out of a process as it runs: nobody who sees some of it can
// tell the rest.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/door.h"
#include "relay/path_endpoints.h"
#include "relay/session_stream.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/worker.h"
#include "runtime/fabric/byte_order.h"
#include "runtime/fabric/datagram/port_opener.h"
#include "runtime/fabric/datagram/udp_io.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

static_assert(!std::constructible_from<Secret, uint64_t> &&
                  !std::assignable_from<Secret&, uint64_t>,
              "a number is no secret");
static_assert(!std::derived_from<Random, SecretSource> &&
                  !std::convertible_to<Random&, SecretSource&>,
              "what jitter is drawn from fills none");

constexpr size_t of_each_kind = 10'000;

/// Of the generator of jitter: four outputs in a row are its state (runtime/base/random.cpp).
class Guesser {
 public:
  explicit Guesser(const uint64_t* outputs) {
    std::array<uint64_t, 4> second{};  // the second word of the state before each of them
    for (size_t i = 0; i < 4; ++i) {
      constexpr uint64_t one_fifth = 0xCCCCCCCCCCCCCCCD;
      constexpr uint64_t one_ninth = 0x8E38E38E38E38E39;
      second[i] = std::rotr(outputs[i] * one_ninth, 7) * one_fifth;
    }
    const auto [b0, b1, b2, b3] = second;
    const uint64_t first_and_third = b0 ^ b1;
    const uint64_t c1 = first_and_third ^ b0 << 17;
    const uint64_t first_and_fourth = b2 ^ b1 ^ c1 ^ b0;
    const uint64_t d1 = b3 ^ b2 ^ c1 ^ b1 << 17 ^ b1;
    const uint64_t d0 = std::rotr(d1, 45) ^ b0;
    const uint64_t a0 = first_and_fourth ^ d0;
    state_ = {a0, b0, first_and_third ^ a0, d0};
    for (int i = 0; i < 4; ++i) {
      next();
    }
  }
  uint64_t next() {
    auto& [a, b, c, d] = state_;
    const uint64_t result = std::rotl(b * 5, 7) * 9;
    const uint64_t shifted = b << 17;
    c ^= a;
    d ^= b;
    b ^= c;
    a ^= d;
    c ^= shifted;
    d = std::rotl(d, 45);
    return result;
  }

 private:
  std::array<uint64_t, 4> state_{};
};

/// How many of them somebody could tell who has seen four others in a row.
size_t guessed(const std::vector<uint64_t>& seen, const std::set<uint64_t>& all) {
  constexpr int further = 64;
  size_t found = 0;
  for (size_t at = 0; at + 4 <= seen.size(); ++at) {
    Guesser guesser(&seen[at]);
    for (int i = 0; i < further; ++i) {
      found += all.contains(guesser.next()) ? 1 : 0;
    }
  }
  return found;
}

TEST(Secrets, TheLookingFindsAGeneratorThatTellsItself) {
  Random random(kernel_secrets().draw().told());
  std::vector<uint64_t> seen(8);
  for (uint64_t& one : seen) {
    one = random.next();
  }
  EXPECT_EQ(guessed(seen, {seen.begin(), seen.end()}), 4U + 3 + 2 + 1);
}

TEST(Secrets, AreNeitherNoneNorAlike) {
  std::set<uint64_t> all;
  for (size_t i = 0; i < of_each_kind; ++i) {
    all.insert(kernel_secrets().draw().told());
  }
  EXPECT_EQ(all.size(), of_each_kind);
  EXPECT_FALSE(all.contains(0));
  uint32_t ored = 0;
  uint32_t anded = UINT32_MAX;
  for (int i = 0; i < 200; ++i) {
    const uint32_t drawn = kernel_secrets().bits(24);
    ored |= drawn;
    anded &= drawn;
  }
  EXPECT_EQ(ored, 0xFFFFFFU);
  EXPECT_EQ(anded, 0U);
}

struct NoMember final : Door::Member, relay::PathEndpoints::Member {
  void on_call(ControlType, std::unique_ptr<Stream>, ControlReader) override {}
  void on_request(std::unique_ptr<relay::SessionStream>, relay::SetupRequest) override {}
};

struct NoOwner final : relay::SessionStream::Owner, fabric::PathOwner {
  void on_session_open(relay::SessionStream&) override {}
  void on_session_message(relay::SessionStream&, relay::SessionMessage) override {}
  void on_session_lost(relay::SessionStream&, const Error&) override {}
  void on_path_state(fabric::Path&, fabric::PathState, const Error&) override {}
  void on_completion(const fabric::Completion&) override {}
  void on_fence_stuck(fabric::Path&, const Error&) override {}
};

fabric::SocketAddress udp_loopback(uint16_t port = 0) {
  fabric::SocketAddress address;
  auto* ip = reinterpret_cast<sockaddr_in*>(&address.storage);
  ip->sin_family = AF_INET;
  ip->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ip->sin_port = htons(port);
  address.length = sizeof *ip;
  return address;
}

/// A worker as a process has it.
class SecretsOfAWorker : public ::testing::Test {
 protected:
  Worker& worker() { return engine_->worker(0); }
  Context& context() { return worker().context(); }
  void keep(const std::string& kind, uint64_t secret) {
    of_kind_[kind].push_back(secret);
    all_.insert(secret);
  }
  void collect_paths();
  void collect_nonces();

  SteadyClock clock_;
  NoOwner owner_;
  NoMember member_;
  std::unique_ptr<Engine> engine_ =
      Engine::start_virtual(Config{}, clock_, 1, [] { return *make_uv_streams(); });
  std::map<std::string, std::vector<uint64_t>> of_kind_;
  std::set<uint64_t> all_;
};

void SecretsOfAWorker::collect_paths() {
  fabric::Memory memory;
  auto opener = fabric::PortOpener::from(context().config(), memory);
  ASSERT_TRUE(opener);
  std::weak_ptr<fabric::DatagramPort> port;
  const auto make = [&] {
    fabric::PathOptions options;
    options.writes_max = 1;
    return opener->create_path(
        context(), port, 1500,
        []() -> Result<std::unique_ptr<fabric::PacketIo>> {
          auto io = fabric::UdpIo::open({udp_loopback()});
          return io ? Result<std::unique_ptr<fabric::PacketIo>>(std::move(*io)) : io.error();
        },
        options, &owner_);
  };
  const auto keeps_the_port = make();
  ASSERT_TRUE(keeps_the_port);
  for (size_t i = 0; i < of_each_kind; ++i) {
    const auto made = make();
    ASSERT_TRUE(made);
    const auto address = fabric::decode_address(made->path->local_address());
    ASSERT_TRUE(address);
    keep("path", address->token.told());
  }
}

/// As an unknown peer gets them: out of the first message of a session, on the wire.
void SecretsOfAWorker::collect_nonces() {
  KeyRing keys;
  keys.add(1, {});
  const auto key = std::make_shared<const KeyFile>(std::move(keys));
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto address = udp_loopback();
  ASSERT_EQ(bind(listening, address.get(), address.length), 0);
  ASSERT_EQ(listen(listening, 16), 0);
  ASSERT_EQ(getsockname(listening, address.get(), &address.length), 0);
  constexpr size_t words = sizeof(relay::SessionHello::Nonce) / sizeof(uint64_t);
  for (size_t i = 0; i < of_each_kind / words; ++i) {
    relay::SessionStream stream(context(), &owner_, {key}, false);
    ASSERT_TRUE(stream.dial({address, {}}));
    const int taken = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    ASSERT_GE(taken, 0);
    std::array<std::byte, 128> hello{};
    ASSERT_TRUE(test::until([&] {
      context().request_stream_turns(1);
      worker().turn();
      return recv(taken, hello.data(), hello.size(), 0) > 0;
    }));
    close(taken);
    for (size_t word = 0; word < words; ++word) {
      constexpr size_t before_nonce = relay::session_header_bytes + relay::ticket_bytes;
      keep("nonce", fabric::get<uint64_t>(hello.data(), before_nonce + word * sizeof(uint64_t)));
    }
  }
  close(listening);
}

TEST_F(SecretsOfAWorker, TellNothingOfEachOther) {
  collect_paths();
  collect_nonces();
  const auto door = Door::of(context());
  const auto endpoints = relay::PathEndpoints::of(context(), {});
  const auto kept = door->enter(&member_);  // it stays open
  ASSERT_TRUE(endpoints && kept);
  for (size_t i = 0; i < of_each_kind; ++i) {
    const auto rejoin = door->enter(&member_);
    ASSERT_TRUE(rejoin);
    keep("rejoin", rejoin->told());
    door->leave(*rejoin);
    const Secret endpoint = (*endpoints)->enter(&member_);
    keep("endpoint", endpoint.told());
    (*endpoints)->leave(endpoint);
  }
  door->leave(*kept);
  EXPECT_EQ(all_.size(), of_kind_.size() * of_each_kind) << "some came twice";
  for (const auto& [kind, seen] : of_kind_) {
    EXPECT_EQ(seen.size(), of_each_kind) << kind;
    EXPECT_EQ(guessed(seen, all_), 0U) << kind;
  }
  // What jitter has used tells nothing of them either.
  std::vector<uint64_t> jitter(8);
  for (uint64_t& one : jitter) {
    one = context().random().next();
  }
  EXPECT_EQ(guessed(jitter, all_), 0U);
}

}  // namespace
}  // namespace nccl_ha
