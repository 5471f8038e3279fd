// Many sessions through one relay: what each gets, when memory runs out, who is let in, and how a
// relay ends.
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/datagram/wire.h"
#include "tests/support/relayed_pair.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using fabric::CompletionStatus;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A relay before a cable that is the bottleneck, and pairs that always have something to send.
class RelayShares : public testing::Test {
 protected:
  static constexpr size_t piece = 4096;
  static constexpr uint64_t cable_rate = 100'000'000;  ///< bytes per second
  struct Sender {
    std::unique_ptr<RelayedPair> pair;
    size_t message = 2 * piece;
    size_t under_way = 8;  ///< messages
    uint64_t posted = 0;
    bool takes = true;  ///< its receiver posts receives
  };
  RelayShares() {
    RelayLine::Options options;
    options.chunk_bytes = piece;
    options.relay.chunk_bytes = piece;
    options.relay.flight_bytes = 256 << 10;
    options.relay.sessions_per_host = 256;
    line_ = std::make_unique<RelayLine>(options);
    line_->limit(1, cable_rate);
  }
  Sender& add(std::optional<uint16_t> slots = std::nullopt, size_t message = 2 * piece,
              size_t under_way = 8) {
    Sender made;
    made.message = message;
    made.under_way = under_way;
    made.pair = std::make_unique<RelayedPair>(*line_, message, senders_.size() + 1, 128, slots);
    EXPECT_TRUE(made.pair->connect(*line_)) << senders_.size();
    senders_.push_back(std::move(made));
    return senders_.back();
  }
  void go_on(Sender& sender) {
    const size_t done = sender.pair->completions(0);
    while (sender.posted < done + sender.under_way) {
      ASSERT_EQ(sender.pair->write(0, sender.posted, sender.message), Errc::ok);
      if (sender.takes) {
        sender.pair->receive(1, 1);
      }
      ++sender.posted;
    }
  }
  /// Bytes of each that the relay has taken.
  std::vector<double> carried() const {
    std::vector<double> bytes;
    for (const relay::RelaySession* session : line_->node(1).sessions()) {
      bytes.push_back(static_cast<double>(session->counts(0).bytes));
    }
    return bytes;
  }
  /// In that time.
  std::vector<double> run(Duration time) {
    const Instant end = line_->world().network().now() + time;
    const std::vector<double> before = carried();
    static_cast<void>(line_->world().run_until(
        [&] {
          for (Sender& sender : senders_) {
            go_on(sender);
          }
          return line_->world().network().now() >= end;
        },
        2 * time));
    std::vector<double> bytes = carried();
    for (size_t i = 0; i < senders_.size(); ++i) {
      bytes[i] -= before[i];
      EXPECT_TRUE(senders_[i].pair->ready()) << i;
    }
    return bytes;
  }
  std::unique_ptr<RelayLine> line_;
  std::vector<Sender> senders_;  ///< end before the line
};

TEST_F(RelayShares, OfTwoHundredOneIsStalledAndOneFloods) {
  for (size_t i = 0; i < 198; ++i) {
    add();
  }
  ASSERT_EQ(line_->node(1).sessions().size(), 198U);
  static_cast<void>(run(milliseconds(100)));
  const auto alone = run(milliseconds(300));
  // One whose receiver takes nothing, and one with all slots that a relay gives and long messages.
  add().takes = false;
  add(64, 64 * piece, 64);
  static_cast<void>(run(milliseconds(100)));
  const auto beside = run(milliseconds(300));
  ASSERT_EQ(line_->node(1).sessions().size(), 200U);
  const auto others = [](const std::vector<double>& bytes) {
    return std::accumulate(bytes.begin(), bytes.begin() + 198, 0.0);
  };
  std::printf(
      "198 others: %.1f MB alone, %.1f MB beside a flood of %.2f MB, %.2f of a fair share\n",
      others(alone) / 1e6, others(beside) / 1e6, beside[199] / 1e6,
      beside[199] / (others(beside) / 198));
  EXPECT_GT(others(alone), 0.8 * 0.3 * cable_rate) << "the cable is full";
  EXPECT_GT(others(beside), 0.9 * others(alone));
  for (size_t i = 0; i < 198; ++i) {
    EXPECT_GT(beside[i], 0.5 * others(alone) / 198) << i;
  }
  EXPECT_EQ(beside[198], 0);
  EXPECT_GT(beside[199], 0);
  // It has four times as many slots as the others have frames under way, and gets what they get.
  EXPECT_LT(beside[199], 1.6 * others(beside) / 198);
}

TEST(RelayPoolSim, WhenMemoryRunsOutSessionsAreSlowerAndThenRefusedButNothingIsLost) {
  RelayLine::Options options;
  options.chunk_bytes = 4096;
  options.relay.chunk_bytes = 4096;
  options.relay.pool_bytes = relay::RelayPool::bytes_of(100, 4096);
  options.relay.sessions_per_host = options.relay.sessions_max;
  RelayLine line(options);
  line.limit(1, 50'000'000);
  std::vector<std::unique_ptr<RelayedPair>> pairs;
  bool refused = false;
  while (!refused) {
    auto pair = std::make_unique<RelayedPair>(line, 100'000, pairs.size() + 1);
    fill(pair->ends[0].bytes, pairs.size());
    EXPECT_TRUE(pair->ends[0].path->connect(pair->ends[1].path->local_address()));
    EXPECT_TRUE(pair->ends[1].path->connect(pair->ends[0].path->local_address()));
    ASSERT_TRUE(
        line.world().run_until([&] { return pair->ready() || pair->failed(0); }, seconds(5)));
    refused = pair->failed(0);
    if (refused) {
      EXPECT_NE(pair->ends[0].owner.last_error.what.find("HA_NCCL_MESH_POOL_BYTES"),
                std::string::npos)
          << pair->ends[0].owner.last_error.what;
    } else {
      pairs.push_back(std::move(pair));
    }
  }
  EXPECT_GT(pairs.size(), 10U);
  EXPECT_EQ(line.node(1).sessions().front()->share().slots, 12) << "an eighth of all";
  EXPECT_EQ(line.node(1).sessions().back()->share().slots, relay::slots_min);
  for (auto& pair : pairs) {
    pair->receive(1, 20);
    for (uint64_t i = 0; i < 20; ++i) {
      ASSERT_EQ(pair->write(0, i, 100'000), Errc::ok);
    }
  }
  uint64_t held_most = 0;  // of the one with the fewest slots
  ASSERT_TRUE(line.world().run_until(
      [&] {
        held_most = std::max(held_most, line.node(1).sessions().back()->held(0));
        return std::all_of(pairs.begin(), pairs.end(),
                           [](const auto& pair) { return pair->completions(1) == 20; });
      },
      seconds(30)));
  for (auto& pair : pairs) {
    EXPECT_EQ(pair->ends[0].bytes, pair->ends[1].bytes);
  }
  EXPECT_LE(line.node(1).counts().pool_bytes_most, options.relay.pool_bytes);
  EXPECT_EQ(held_most, relay::slots_min) << "nobody had to wait";
  pairs.clear();
  ASSERT_TRUE(line.world().run_until([&] { return line.node(1).sessions().empty(); }, seconds(1)));
  EXPECT_EQ(line.node(1).counts().pool_bytes, 0U);
}

TEST(RelayPoolSim, OneHostDoesNotTakeAllSessions) {
  RelayLine::Options options;
  options.relay.sessions_per_host = 2;
  RelayLine line(options);
  const auto pairs = connected_pairs(line, 4096, 2);
  ASSERT_EQ(pairs.size(), 2U);
  RelayedPair refused(line, 4096, 9);
  EXPECT_FALSE(refused.connect(line));
  EXPECT_NE(refused.ends[0].owner.last_error.what.find("HA_NCCL_MESH_SESSIONS_PER_HOST"),
            std::string::npos)
      << refused.ends[0].owner.last_error.what;
}

/// Asks a relay for a session, with whatever route.
class RelayAsker final : public relay::SessionStream::Owner {
 public:
  RelayAsker(RelayLine& line, size_t host, size_t relay, std::vector<relay::NodeId> nodes,
             uint8_t place, relay::SessionKeys keys = {},
             const relay::PathEndpoint& end = {{}, 1, {}, {}})
      : stream_(line.context(host), this, std::move(keys), false) {
    request_.nodes = std::move(nodes);
    request_.place = place;
    request_.port = end.port;
    request_.token = end.token;
    request_.chunk_bytes = 65536;
    request_.kind = fabric::datagram_kind;
    request_.window = {4096, 3, 65536 + relay::frame_header_bytes, 64};
    fabric::WireAddress hop;
    hop.command.storage = hop.data.storage = sim::Endpoint{sim::ip(10, 1, 0, 1), 1}.to_sockaddr();
    hop.command.length = hop.data.length = sizeof(sockaddr_in);
    hop.mtu = 1500;
    hop.socket_bytes = 1 << 20;
    hop.window = 64;
    hop.tiny_bytes = 768;
    request_.hop_address.resize(fabric::wire_address_bytes);
    encode(hop, std::span<std::byte, fabric::wire_address_bytes>(request_.hop_address));
    auto next = *line.next(host).find(RelayLine::id(relay));
    if (number(end.node) != 0) {
      next.relay.set_port(end.port);  // the process itself
    }
    EXPECT_TRUE(stream_.dial(next));
  }
  const std::string& refusal() const { return refusal_; }

 private:
  void on_session_open(relay::SessionStream& stream) override { stream.send(request_); }
  void on_session_message(relay::SessionStream&, relay::SessionMessage message) override {
    if (const auto* refusal = std::get_if<relay::SetupRefusal>(&message)) {
      refusal_ = refusal->text;
    }
  }
  void on_session_lost(relay::SessionStream&, const Error&) override {}

  relay::SetupRequest request_;
  std::string refusal_;
  relay::SessionStream stream_;
};

TEST(RelayAskers, OnlyTheNeighbourItselfIsServed) {
  RelayLine line({});
  const auto id = [](size_t host) { return RelayLine::id(host); };
  const RelayAsker invented(line, 0, 1, {relay::NodeId{99}, id(1), id(2)}, 1);
  const RelayAsker other(line, 0, 1, {id(2), id(1), id(0)}, 1);
  EXPECT_TRUE(line.world().run_until(
      [&] { return !invented.refusal().empty() && !other.refusal().empty(); }, seconds(5)));
  EXPECT_NE(invented.refusal().find("is no neighbour at that address"), std::string::npos);
  EXPECT_NE(other.refusal().find("is no neighbour at that address"), std::string::npos)
      << other.refusal();
  EXPECT_EQ(line.node(1).counts().opened, 0U) << "nothing was dialled";
}

TEST(RelayAskers, WhoInventsOriginsHasOneShare) {
  RelayLine::Options options;
  options.relay.sessions_max = 6;
  options.relay.sessions_per_host = 3;
  for (const bool memory : {false, true}) {
    options.relay.pool_bytes = relay::RelayPool::bytes_of(memory ? 16 : 1000, 65536);
    RelayLine line(options);
    std::vector<std::unique_ptr<RelayAsker>> askers;
    for (size_t i = 0; i < 6; ++i) {
      askers.push_back(std::make_unique<RelayAsker>(
          line, 0, 1,
          std::vector{relay::NodeId{100 + i}, RelayLine::id(0), RelayLine::id(1), RelayLine::id(2)},
          uint8_t{2}));
    }
    const auto answered = [&] {
      return std::all_of(askers.begin(), askers.end(),
                         [](const auto& one) { return !one->refusal().empty(); });
    };
    EXPECT_TRUE(line.world().run_until(answered, seconds(5)));
    // Two with the fewest slots fill half of the memory; else three are as many as it may have.
    EXPECT_EQ(line.node(1).counts().opened, memory ? 2U : 3U);
    EXPECT_LE(line.node(1).counts().pool_bytes_most, options.relay.pool_bytes / 2);
    EXPECT_NE(askers.back()->refusal().find(memory ? "HA_NCCL_MESH_POOL_BYTES"
                                                   : "HA_NCCL_MESH_SESSIONS_PER_HOST"),
              std::string::npos)
        << askers.back()->refusal();
  }
}

std::shared_ptr<KeyFile> key_of(std::initializer_list<uint32_t> numbers) {
  KeyRing keys;
  for (const uint32_t number : numbers) {
    HashKey key;
    key.fill(static_cast<std::byte>(number));
    keys.add(number, key);
  }
  return std::make_shared<KeyFile>(keys);
}

TEST(RelayKeys, WhoHasTheKeyRelaysAndNobodyElse) {
  const ErrorsOnly quiet;
  for (const auto& [ends, relays, lets] :
       {std::tuple{key_of({1}), key_of({1}), true}, std::tuple{key_of({1}), key_of({1, 2}), true},
        std::tuple{key_of({1, 2}), key_of({2}), false}, std::tuple{key_of({2}), key_of({1}), false},
        std::tuple{std::shared_ptr<KeyFile>(), key_of({1}), false},
        std::tuple{key_of({1}), std::shared_ptr<KeyFile>(), false}}) {
    RelayLine::Options options;
    options.relays = 2;
    options.keys[0] = ends;
    options.keys[1] = relays;
    RelayLine line(options);
    RelayedPair pair(line, 100'000, 1);
    fill(pair.ends[0].bytes, 4);
    ASSERT_EQ(pair.connect(line), lets);
    EXPECT_EQ(line.node(1).counts().unauthenticated, lets ? 0U : 1U);
    EXPECT_EQ(line.node(1).counts().opened, lets ? 1U : 0U);
    if (!lets) {
      EXPECT_NE(pair.ends[0].owner.last_error.what.find("key"), std::string::npos)
          << pair.ends[0].owner.last_error.what;
      continue;
    }
    pair.receive(1, 5);
    for (uint64_t i = 0; i < 5; ++i) {
      ASSERT_EQ(pair.write(0, i, 100'000), Errc::ok);
    }
    ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 5; }, seconds(5)));
    EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
    static_cast<void>(line.world().run_until([] { return false; }, seconds(10)));
    EXPECT_TRUE(pair.ready()) << "they go on greeting each other";
  }
}

/// What the node of `host` would give a process of `user`.
relay::NamedKey ticket_of(size_t host, uint32_t user = 1000, uint32_t incarnation = 0,
                          uint32_t key = 1) {
  HashKey cluster;
  cluster.fill(static_cast<std::byte>(key));
  return relay::make_named_key(cluster, {key, RelayLine::id(host), incarnation, user, {}});
}

std::shared_ptr<relay::Tickets> tickets_of(const relay::NamedKey& ticket) {
  auto tickets = std::make_shared<relay::Tickets>();
  tickets->add(ticket);
  return tickets;
}

TEST(RelayTickets, AProcessWithoutTheKeyIsRelayedBetweenNodesThatHaveIt) {
  for (const auto& [first, last] : {std::pair{true, false}, {false, true}, {true, true}}) {
    RelayLine::Options options;
    options.relays = 2;
    options.keys[0] = key_of({1, 2});
    options.keys[1] = key_of({2, 1});
    options.tickets[0] = first ? tickets_of(ticket_of(0)) : nullptr;
    options.tickets[1] = last ? tickets_of(ticket_of(3)) : nullptr;
    RelayLine line(options);
    RelayedPair pair(line, 100'000, 1);
    fill(pair.ends[0].bytes, 4);
    ASSERT_TRUE(pair.connect(line)) << first << last;
    pair.receive(1, 5);
    for (uint64_t i = 0; i < 5; ++i) {
      ASSERT_EQ(pair.write(0, i, 100'000), Errc::ok);
    }
    ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 5; }, seconds(5)));
    EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
    EXPECT_EQ(line.node(1).sessions()[0]->share().ticket.given(), first);
    static_cast<void>(line.world().run_until([] { return false; }, seconds(10)));
    EXPECT_TRUE(pair.ready()) << "they go on greeting each other";
  }
}

TEST(RelayTickets, WrongOnesAreRefused) {
  const ErrorsOnly quiet;
  const relay::NamedKey mine = ticket_of(0);
  relay::NamedKey changed = mine;
  changed.ticket.user = 0;
  const relay::NamedKey refused[] = {ticket_of(0, 1000, 0, 9), changed, ticket_of(0, 1000, 5),
                                     ticket_of(1)};
  for (const relay::NamedKey& wrong : refused) {
    RelayLine::Options options;
    options.keys[1] = key_of({1});
    options.tickets[0] = tickets_of(wrong);
    options.tickets[1] = tickets_of(ticket_of(2));
    RelayLine line(options);
    RelayedPair pair(line, 4096, 1);
    EXPECT_FALSE(pair.connect(line));
    EXPECT_TRUE(pair.failed(0));
    EXPECT_EQ(line.node(1).counts().opened, 0U) << "nothing was dialled";
  }
  // The peer was told of one that this process does not have.
  RelayLine::Options options;
  options.keys[1] = key_of({1});
  options.tickets[0] = tickets_of(mine);
  options.tickets[1] = tickets_of({ticket_of(2).ticket, mine.key});
  RelayLine line(options);
  RelayedPair pair(line, 4096, 1);
  EXPECT_FALSE(pair.connect(line));
  EXPECT_EQ(line.node(1).counts().opened, 1U);
}

TEST(RelayTickets, OfANodeThatHasEndedAreNoUse) {
  const ErrorsOnly quiet;
  RelayLine::Options options;
  options.keys[0] = options.keys[1] = key_of({1});
  options.incarnation = 6;
  for (const uint32_t incarnation : {5U, 6U}) {
    options.tickets[0] = tickets_of(ticket_of(0, 1000, incarnation));
    RelayLine line(options);
    RelayedPair pair(line, 4096, 1);
    EXPECT_EQ(pair.connect(line), incarnation == 6);
    EXPECT_EQ(pair.ends[0].owner.last_error.what.find("that has ended") != std::string::npos,
              incarnation == 5)
        << pair.ends[0].owner.last_error.what;
  }
}

TEST(RelayTickets, AProcessRelaysForNobodyAndSpeaksForNoOtherHost) {
  const ErrorsOnly quiet;
  RelayLine::Options options;
  options.keys[0] = options.keys[1] = key_of({1});
  RelayLine line(options);
  const auto id = [](size_t host) { return RelayLine::id(host); };
  const relay::SessionKeys own{nullptr, tickets_of(ticket_of(0))};
  const relay::SessionKeys others{nullptr, tickets_of(ticket_of(2))};
  const RelayAsker relays(line, 0, 1, {relay::NodeId{99}, id(0), id(1), id(2)}, 2, own);
  const RelayAsker other(line, 0, 1, {id(0), id(1), id(2)}, 1, others);
  // Right at a process that has the key, and with the token of a path there.
  RelayedPair pair(line, 4096, 1);
  const auto end = *relay::decode_endpoint(pair.ends[1].path->local_address());
  const RelayAsker last(line, 1, 2, {id(0), id(1), id(2)}, 2, {nullptr, tickets_of(ticket_of(1))},
                        end);
  EXPECT_TRUE(line.world().run_until(
      [&] {
        return !relays.refusal().empty() && !other.refusal().empty() && !last.refusal().empty();
      },
      seconds(5)));
  EXPECT_NE(relays.refusal().find("does not begin there"), std::string::npos) << relays.refusal();
  EXPECT_NE(other.refusal().find("does not begin there"), std::string::npos) << other.refusal();
  EXPECT_NE(last.refusal().find("does not end here"), std::string::npos) << last.refusal();
  EXPECT_EQ(line.node(1).counts().opened, 0U) << "nothing was dialled";
}

TEST(RelayTickets, OneUserOfAHostLeavesSomethingForAnother) {
  const ErrorsOnly quiet;
  for (const bool memory : {false, true}) {
    RelayLine::Options options;
    options.keys[1] = key_of({1});
    options.relay.sessions_per_host = options.relay.sessions_max = memory ? 256 : 4;
    options.relay.pool_bytes = relay::RelayPool::bytes_of(memory ? 32 : 1000, 65536);
    RelayLine line(options);
    const std::vector route{RelayLine::id(0), RelayLine::id(1), RelayLine::id(2)};
    std::vector<std::unique_ptr<RelayAsker>> askers;
    for (const uint32_t user : {1U, 1U, 1U, 1U, 1U, 1U, 1U, 1U, 2U}) {
      askers.push_back(std::make_unique<RelayAsker>(
          line, 0, 1, route, uint8_t{1},
          relay::SessionKeys{nullptr, tickets_of(ticket_of(0, user))}));
    }
    EXPECT_TRUE(line.world().run_until(
        [&] {
          return std::all_of(askers.begin(), askers.end(),
                             [](const auto& one) { return !one->refusal().empty(); });
        },
        seconds(5)));
    const auto refused = [&](size_t asker) {
      return askers[asker]->refusal().find(memory ? "HA_NCCL_MESH_POOL_BYTES" : "of user 1") !=
             std::string::npos;
    };
    EXPECT_FALSE(refused(0)) << askers[0]->refusal();
    EXPECT_TRUE(refused(7)) << askers[7]->refusal();
    EXPECT_FALSE(refused(8)) << "the other user has its share: " << askers[8]->refusal();
  }
}

TEST(RelayKeys, KeysChangeUnderSessions) {
  RelayLine::Options options;
  options.keys[0] = key_of({1});
  options.keys[1] = key_of({1});
  RelayLine line(options);
  RelayedPair old(line, 4096, 1);
  ASSERT_TRUE(old.connect(line));
  const auto renew = [&](size_t which, const std::vector<uint32_t>& numbers) {
    KeyRing keys;
    for (const uint32_t number : numbers) {
      HashKey key;
      key.fill(static_cast<std::byte>(number));
      keys.add(number, key);
    }
    options.keys[which]->set(keys);
  };
  uint64_t domain = 2;
  const auto connects = [&] {
    RelayedPair pair(line, 4096, domain++);
    return pair.connect(line);
  };
  const std::pair<size_t, std::vector<uint32_t>> steps[] = {{0, {1, 2}}, {1, {1, 2}}, {1, {2, 1}},
                                                            {0, {2, 1}}, {0, {2}},    {1, {2}}};
  for (const auto& [which, numbers] : steps) {
    renew(which, numbers);
    EXPECT_TRUE(connects()) << domain;
  }
  renew(0, {1});
  EXPECT_FALSE(connects()) << "the old one is no use any more";
  EXPECT_TRUE(old.ready()) << "what goes on needs no new key";
}

TEST(RelayDrain, TakesNobodyTellsAllAndEndsSessionsOneByOne) {
  std::vector<bool> told;
  RelayLine::Options options;
  options.tell = [&](bool relays) { told.push_back(relays); };
  RelayLine line(options);
  std::vector<std::unique_ptr<RelayedPair>> pairs;
  for (uint64_t i = 0; i < 4; ++i) {
    pairs.push_back(std::make_unique<RelayedPair>(line, 4096, i + 1));
    ASSERT_TRUE(pairs.back()->connect(line));
  }
  const auto ended = [&] {
    return std::count_if(pairs.begin(), pairs.end(),
                         [](const auto& pair) { return pair->failed(0) && pair->failed(1); });
  };
  ASSERT_EQ(told, std::vector<bool>{true});
  const Instant began = line.world().network().now();
  line.drain(1, 1000);
  ASSERT_TRUE(line.world().run_until([&] { return line.node(1).draining(); }, milliseconds(10)));
  EXPECT_EQ(told, (std::vector<bool>{true, false}));
  RelayedPair late(line, 4096, 9);
  EXPECT_TRUE(late.ends[0].path->connect(late.ends[1].path->local_address()));
  ASSERT_TRUE(line.world().run_until([&] { return late.failed(0); }, milliseconds(100)))
      << "no new ones";
  EXPECT_NE(late.ends[0].owner.last_error.what.find("takes no more paths"), std::string::npos)
      << late.ends[0].owner.last_error.what;
  std::vector<Duration> at;
  for (int64_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(line.world().run_until([&] { return ended() >= i; }, seconds(1))) << i;
    EXPECT_EQ(ended(), i) << "they are not ended one by one";
    at.push_back(line.world().network().now() - began);
    EXPECT_NE(pairs[static_cast<size_t>(i - 1)]->ends[0].owner.last_error.what.find(
                  "the relay node ends"),
              std::string::npos);
  }
  EXPECT_LT(at.back(), milliseconds(1000));
}

}  // namespace
}  // namespace nccl_ha::test
