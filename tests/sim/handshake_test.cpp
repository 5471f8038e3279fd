// Handshakes on virtual time in which a side stands still, or the paths do not come up: until the
// caller's time is up only proof of death ends one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "actors/connection/connection.h"
#include "ha/route_rounds.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "tests/rig/runs/pair.h"
#include "tests/rig/sim/endpoint.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::SimCables;
using rig::SimPair;
using rig::TransferPlan;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Only one rail: nothing else can take the place of the first path.
TEST(SimHandshake, ASideThatStandsStillAnywhereInItCostsOnlyTime) {
  size_t before_the_end = 0;
  const auto points = static_cast<int>(sim_alike(30));
  for (const bool rdma : {false, true}) {
    const SimCables cables{.rails = 1, .rdma = rdma};
    SimPair undisturbed(41, {}, {}, cables);
    ASSERT_TRUE(undisturbed.connect()) << undisturbed.error();
    const Duration takes = undisturbed.world().now() - Instant(seconds(1));
    // The longest is longer than a listener waits for a hello.
    for (const bool sender : {false, true}) {
      for (const Duration pause : {milliseconds(1500), milliseconds(5000), milliseconds(8000)}) {
        for (int point = 1; point <= points; ++point) {  // from when somebody listens
          SCOPED_TRACE(fmt::format("rdma {} the {} stands still for {} ms at point {}", rdma,
                                   sender ? "sender" : "receiver", pause.count() / 1'000'000,
                                   point));
          SimPair pair(41, {}, {}, cables);
          const Instant at = pair.world().now() + takes * point / points;
          bool paused = false;
          ASSERT_TRUE(pair.connect([&] {
            if (!paused && pair.world().now() >= at) {
              paused = true;
              pair.world().pause(sender ? pair.sender() : pair.receiver(),
                                 pair.world().now() + pause);
            }
          })) << pair.error();
          before_the_end += paused ? 1 : 0;
          TransferPlan plan;
          plan.groups = 10;
          EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
        }
      }
    }
  }
  EXPECT_GT(before_the_end, 200U * points / 30) << "nobody stood still";
}

TEST(SimHandshake, BothSidesStandStillInTurn) {
  for (uint64_t seed = 1; seed <= sim_alike(100); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    SimPair pair(4200 + seed, {}, {}, {.rails = 1, .rdma = seed % 2 == 0});
    Random random(seed);
    Instant next = pair.world().now() + microseconds(random.below(100));
    int pauses = 0;
    ASSERT_TRUE(pair.connect([&] {
      if (pauses < 4 && pair.world().now() >= next) {
        ++pauses;
        const Duration pause = milliseconds(1 + random.below(3000));
        pair.world().pause(random.chance(0.5) ? pair.sender() : pair.receiver(),
                           pair.world().now() + pause);
        next = pair.world().now() + milliseconds(random.below(1500));
      }
    })) << pair.error();
    EXPECT_GT(pauses, 0);
    TransferPlan plan;
    plan.groups = 10;
    EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
  }
}

TEST(SimHandshake, WherePacketsAreBlockedBothSidesSaySoWhenTheTimeIsUp) {
  Config config;
  config.connect_timeout_ms = 10000;
  sim::Link blocked;
  blocked.drop = 1;
  SimPair pair(43, blocked, config);
  EXPECT_FALSE(pair.connect());
  const std::string at_sender = pair.error();
  EXPECT_NE(at_sender.find("HA_NCCL_CONNECT_TIMEOUT_MS"), std::string::npos) << at_sender;
  EXPECT_NE(at_sender.find("no path came up"), std::string::npos) << at_sender;
  EXPECT_NE(at_sender.find("datagram"), std::string::npos) << at_sender;
  const Duration took = pair.world().now() - Instant(seconds(1));
  EXPECT_GE(took, seconds(10));
  EXPECT_LT(took, milliseconds(10500));
  ASSERT_TRUE(pair.world().run_until([&] { return pair.link().listener().failed(); }, seconds(1)));
  const std::string at_receiver = pair.link().listener().failure().what;
  EXPECT_NE(at_receiver.find("no path came up"), std::string::npos) << at_receiver;
  EXPECT_NE(at_receiver.find("datagram"), std::string::npos) << at_receiver;
  for (const std::string& text : {at_sender, at_receiver}) {
    EXPECT_LE(occurrences(text, "the peer reports"), 1U) << text;
  }
}

TEST(SimHandshake, WhatBlocksPacketsForAWhileCostsOnlyTime) {
  sim::Link blocked;
  blocked.drop = 1;
  SimPair pair(44, blocked);
  bool open = false;
  const Instant until = pair.world().now() + seconds(12);
  ASSERT_TRUE(pair.connect([&] {
    if (!open && pair.world().now() >= until) {
      open = true;
      pair.world().network().all = {};
    }
  })) << pair.error();
  EXPECT_TRUE(open);
  TransferPlan plan;
  plan.groups = 10;
  EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
}

/// It had its connection: the peer's caller has one too, which then says that the peer has closed.
TEST(SimHandshake, AConnectorThatClosesAtOnceIsAccepted) {
  const auto points = static_cast<size_t>(sim_alike(30));
  for (const bool rdma : {false, true}) {
    for (const bool backup : {true, false}) {
      const SimCables cables{.rails = 1, .rdma = rdma};
      Config config;
      config.enable_backup = backup;
      sim::Link lossy;
      lossy.drop = rdma ? 0 : 0.3;
      size_t closed_first = 0;
      for (size_t point = 1; point <= points; ++point) {
        SCOPED_TRACE(fmt::format("rdma {}, failover {}, the receiver stands still at point {}",
                                 rdma, backup, point));
        SimPair pair(57 + point, lossy, config, cables);
        rig::SimLink link(pair.world(), pair.sender(), pair.receiver());
        const Instant at = pair.world().now() + microseconds(20 * point);
        bool stood = false;
        bool closed = false;
        ASSERT_TRUE(pair.world().run_until(
            [&] {
              if (!stood && pair.world().now() >= at) {
                stood = true;
                pair.world().pause(pair.receiver(), pair.world().now() + milliseconds(1510));
              }
              static_cast<void>(link.step_connecting());
              if (!closed && link.send_comm() != nullptr) {
                closed = true;
                closed_first += stood && !link.accepted() ? 1 : 0;
                link.close_sender();
              }
              return closed && (link.accepted() || link.listener().failed());
            },
            seconds(60)));
        ASSERT_TRUE(link.accepted()) << link.listener().failure().what;
        ASSERT_TRUE(pair.world().run_until([&] { return link.receiver().phase() == Phase::failed; },
                                           seconds(10)));
        EXPECT_NE(link.receiver().failure().what.find("the peer closed"), std::string::npos)
            << link.receiver().failure().what;
      }
      EXPECT_GT(closed_first, points / 10) << "the connector nearly always closed after accept()";
    }
  }
}

/// What it sent arrives although no path has come up here, and no receive was posted before the
/// sender's connection was gone.
TEST(SimHandshake, WhatAConnectorSentBeforeItClosedArrives) {
  using Table = rig::SimPlugin::Table;
  constexpr std::string_view text = "a short message";
  size_t closed_first = 0;
  const uint64_t seeds = sim_alike(400);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Config config;
    config.enable_backup = seed % 2 == 0;
    sim::Link lossy;
    lossy.drop = 0.5;
    SimPair pair(900 + seed, lossy, config);
    rig::SimLink link(pair.world(), pair.sender(), pair.receiver());
    std::string out(text);
    void* request = nullptr;
    int done = 0;
    ASSERT_TRUE(pair.world().run_until(
        [&] {
          static_cast<void>(link.step_connecting());
          rig::SimPlugin& plugin = link.from_plugin();
          if (request == nullptr && link.send_comm() != nullptr) {
            static_cast<void>(plugin.call(
                &Table::isend, link.send_comm(), static_cast<void*>(out.data()), out.size(), 0,
                const_cast<void*>(
                    static_cast<const void*>(link.register_send(out.data(), out.size()))),
                static_cast<void*>(nullptr), &request));
          } else if (request != nullptr && done == 0) {
            static_cast<void>(
                plugin.call(&Table::test, request, &done, static_cast<int*>(nullptr)));
            if (done != 0) {
              closed_first += link.accepted() ? 0 : 1;
              link.close_sender();
            }
          }
          return done != 0 && (link.accepted() || link.listener().failed());
        },
        seconds(60)));
    ASSERT_TRUE(link.accepted()) << link.listener().failure().what;
    static_cast<void>(pair.world().run_until([] { return false; }, seconds(seed % 8 < 2 ? 35 : 3)));
    rig::SimPlugin& plugin = link.to_plugin();
    std::array<char, 64> in{};
    std::array<void*, 1> data{in.data()};
    std::array<size_t, 1> sizes{in.size()};
    std::array<int, 1> tags{};
    std::array<void*, 1> memory{
        const_cast<void*>(static_cast<const void*>(link.register_receive(in.data(), in.size())))};
    void* receive = nullptr;
    ASSERT_EQ(plugin.call(&Table::irecv, link.receive_comm(), 1, data.data(), sizes.data(),
                          tags.data(), memory.data(), static_cast<void**>(nullptr), &receive),
              abi::NcclResult::success)
        << link.receiver().failure().what;
    std::array<int, 1> got{};
    ASSERT_TRUE(pair.world().run_until(
        [&] {
          return plugin.call(&Table::test, receive, &done, got.data()) !=
                     abi::NcclResult::success ||
                 done != 0;
        },
        seconds(10)));
    EXPECT_EQ(std::string_view(in.data(), static_cast<size_t>(got[0])), text);
  }
  EXPECT_GT(closed_first, seeds / 100) << "it was always accepted first";
}

TEST(SimHandshake, APeerThatIsKilledInItEndsIt) {
  SimPair undisturbed(45, {});
  ASSERT_TRUE(undisturbed.connect()) << undisturbed.error();
  const Duration takes = undisturbed.world().now() - Instant(seconds(1));
  for (const bool sender : {false, true}) {
    for (int point = 1; point < 30; ++point) {
      SCOPED_TRACE(fmt::format("the {} dies at point {}", sender ? "sender" : "receiver", point));
      SimPair pair(45, {});
      const Instant at = pair.world().now() + takes * point / 30;
      rig::SimLink link(pair.world(), pair.sender(), pair.receiver());
      ASSERT_FALSE(pair.world().run_until([] { return false; }, at - pair.world().now()));
      pair.world().kill_process(sender ? pair.sender() : pair.receiver());
      if (sender) {
        continue;  // nobody waits for anything: no crash is all that is asked for
      }
      ASSERT_TRUE(pair.world().run_until([&] { return link.sender().phase() == Phase::failed; },
                                         seconds(2)));
    }
  }
}

/// Over RDMA also while the acceptor makes its queue pairs: it has heard the hello and says
/// nothing.
TEST(SimHandshake, AStreamThatEndsBeforeTheWelcomeIsDialledAgain) {
  for (const bool rdma : {false, true}) {
    const SimCables cables{.rails = 1, .rdma = rdma};
    SimPair undisturbed(55, {}, {}, cables);
    ASSERT_TRUE(undisturbed.connect()) << undisturbed.error();
    const Duration takes = undisturbed.world().now() - Instant(seconds(1));
    uint64_t ended = 0;
    // Over datagrams up to the middle of it, where the hello has been said.
    const int points = rdma ? 60 : 30;
    for (const bool reset : {false, true}) {
      for (int point = 1; point <= (rdma ? points : points / 2); ++point) {
        SCOPED_TRACE(fmt::format("rdma {}, {} at point {}", rdma, reset ? "reset" : "end", point));
        SimPair pair(55, {}, {}, cables);
        const Instant at = pair.world().now() + takes * point / points;
        bool done = false;
        ASSERT_TRUE(pair.connect([&] {
          if (!done && pair.world().now() >= at) {
            done = true;
            pair.world().network().tcp().end_flows(pair.sender().addresses[0],
                                                   pair.receiver().addresses[0], reset);
          }
        })) << pair.error();
        EXPECT_LE(pair.world().now() - at, seconds(3));
        EXPECT_FALSE(pair.link().listener().failed()) << pair.link().listener().failure().what;
        ended += done ? 1 : 0;
        expect_transfers(pair);
      }
    }
    EXPECT_GE(ended, 20U) << "the fault hardly ever happened";
  }
}

enum class Where { sender, receiver, both };

void set_ports(SimPair& pair, Where where, bool up) {
  if (where != Where::receiver) {
    pair.sender().nics[0]->set_port(up);
  }
  if (where != Where::sender) {
    pair.receiver().nics[0]->set_port(up);
  }
}

TEST(SimHandshake, APortThatIsDownWhenItBeginsLeavesItToTheOtherRail) {
  for (const Where where : {Where::sender, Where::receiver, Where::both}) {
    for (const int64_t queue_pairs : {1, 3}) {
      SCOPED_TRACE(
          fmt::format("ports of {} down, {} queue pairs", static_cast<int>(where), queue_pairs));
      Config config;
      config.ib_qps = queue_pairs;
      SimPair pair(46, {}, config, {.rails = 2, .rdma = true});
      set_ports(pair, where, false);
      const Instant begin = pair.world().now();
      ASSERT_TRUE(pair.connect()) << pair.error();
      EXPECT_LE(pair.world().now() - begin, seconds(2));
      auto& failovers = pair.send_channel().counters();
      EXPECT_EQ(failovers.paths_down.get(), static_cast<uint64_t>(queue_pairs));
      EXPECT_EQ(failovers.traffic_moves.get(), 1U) << "nothing took the rail's place";
      expect_transfers(pair);
      set_ports(pair, where, true);
      EXPECT_TRUE(pair.world().run_until(
          [&] { return failovers.paths_back.get() == static_cast<uint64_t>(queue_pairs); },
          seconds(5)));
      expect_transfers(pair);
    }
  }
}

TEST(SimHandshake, APortThatComesBackInTimeCostsOnlyTime) {
  for (const Where where : {Where::sender, Where::receiver, Where::both}) {
    SCOPED_TRACE(fmt::format("ports of {} down", static_cast<int>(where)));
    SimPair pair(47, {}, {}, {.rails = 1, .rdma = true});
    set_ports(pair, where, false);
    const Instant until = pair.world().now() + seconds(12);
    bool back = false;
    ASSERT_TRUE(pair.connect([&] {
      if (!back && pair.world().now() >= until) {
        back = true;
        set_ports(pair, where, true);
      }
    })) << pair.error();
    EXPECT_TRUE(back) << "the fault did not happen";
    EXPECT_LE(pair.world().now() - until, seconds(2));
    expect_transfers(pair);
  }
}

TEST(SimHandshake, APortThatStaysDownIsNamedWhenTheTimeIsUp) {
  for (const Where where : {Where::sender, Where::receiver}) {
    SCOPED_TRACE(fmt::format("ports of {} down", static_cast<int>(where)));
    Config config;
    config.connect_timeout_ms = 10000;
    SimPair pair(48, {}, config, {.rails = 1, .rdma = true});
    set_ports(pair, where, false);
    const Instant begin = pair.world().now();
    EXPECT_FALSE(pair.connect());
    EXPECT_GE(pair.world().now() - begin, seconds(10));
    EXPECT_LT(pair.world().now() - begin, milliseconds(10500));
    ASSERT_TRUE(
        pair.world().run_until([&] { return pair.link().listener().failed(); }, seconds(1)));
    for (const std::string& text : {pair.error(), pair.link().listener().failure().what}) {
      EXPECT_NE(text.find("port 1 is"), std::string::npos) << text;
      EXPECT_NE(text.find("HA_NCCL_CONNECT_TIMEOUT_MS"), std::string::npos) << text;
    }
  }
}

TEST(SimHandshake, WithoutFailoverAPortThatIsDownEndsItAtOnce) {
  for (const bool at_sender : {false, true}) {
    for (const Where where : {Where::sender, Where::receiver}) {
      SCOPED_TRACE(fmt::format("off at the {}, ports of {} down", at_sender ? "sender" : "receiver",
                               static_cast<int>(where)));
      Config off;
      off.enable_backup = false;
      SimPair pair(49, {}, at_sender ? off : Config{}, {.rails = 2, .rdma = true},
                   at_sender ? Config{} : off);
      set_ports(pair, where, false);
      const Instant begin = pair.world().now();
      EXPECT_FALSE(pair.connect());
      EXPECT_LE(pair.world().now() - begin, seconds(1));
      EXPECT_NE(pair.error().find("port 1 is"), std::string::npos) << pair.error();
    }
  }
}

/// Nothing that is sent there, or nothing that comes back, arrives.
void cut_rail(SimPair& pair, size_t rail, bool there, bool back) {
  sim::Link cut;
  cut.cut = true;
  pair.set_links(there ? cut : sim::Link{}, back ? cut : sim::Link{}, rail);
}

/// The peer's paths fail meanwhile, and it asks for the stream anew over one route after the other:
/// those that it has let go are read before the one that it uses.
TEST(SimHandshake, AReceiverThatStandsStillMayHearOfStreamsThatWereLetGo) {
  const SimCables cables{.rails = 2, .rdma = true};
  SimPair undisturbed(53, {}, {}, cables);
  ASSERT_TRUE(undisturbed.connect()) << undisturbed.error();
  const Duration takes = undisturbed.world().now() - Instant(seconds(1));
  uint64_t anew = 0;
  const auto points = static_cast<int>(sim_alike(30));
  for (int point = 1; point <= points; ++point) {
    SCOPED_TRACE(fmt::format("at point {}", point));
    SimPair pair(53, {}, {}, cables);
    const Instant at = pair.world().now() + takes * point / points;
    const Instant heals_at = at + milliseconds(3300);
    bool stands = false;
    bool heals = false;
    ASSERT_TRUE(pair.connect([&] {
      if (!stands && pair.world().now() >= at) {
        stands = true;
        pair.world().pause(pair.receiver(), pair.world().now() + milliseconds(2700));
        cut_rail(pair, 0, true, true);
      }
      if (!heals && pair.world().now() >= heals_at) {
        heals = true;
        cut_rail(pair, 0, false, false);
      }
    })) << pair.error();
    anew += pair.receive_channel().counters().streams_anew.get();
    expect_transfers(pair);
  }
  EXPECT_GT(anew, 0U) << "no stream was let go";
}

TEST(SimHandshake, ARouteThatIsSilentLeavesItToTheNext) {
  for (const bool there : {true, false}) {
    for (const bool back : {true, false}) {
      SCOPED_TRACE(fmt::format("cut there {}, back {}", there, back));
      SimPair pair(51, {}, {}, {.rails = 2});
      cut_rail(pair, 0, there, back);
      const Instant begin = pair.world().now();
      ASSERT_TRUE(pair.connect()) << pair.error();
      const Duration took = pair.world().now() - begin;
      EXPECT_LE(took, seconds(3));
      EXPECT_EQ(took >= seconds(2), there || back) << "the first route was not the silent one";
      expect_transfers(pair);
    }
  }
}

TEST(SimHandshake, WhoShowsTheNonceHasNoPlaceAtTheDoorAnyMore) {
  SimPair pair(58, {});
  for (uint16_t i = 0; i < 3; ++i) {
    rig::SimLink link(pair.world(), pair.sender(), pair.receiver(), nullptr);
    ASSERT_TRUE(link.wait_ready()) << link.error();
    EXPECT_EQ(link.door().waiting(), 0U) << "the ones after it are rejected";
  }
}

/// Each device has a cable's network.  Discovery has heard nobody yet, or is heard by nobody.
TEST(SimHandshake, WhereTheAskedDeviceHasNoCableAConnectionLivesWhereItsStreamLeads) {
  for (const auto& [rail, streams_tell] :
       {std::pair<size_t, bool>{0, true}, {1, true}, {1, false}}) {
    SCOPED_TRACE(rail);
    SimPair pair(56, {}, {}, {.rails = 2});
    rig::SimLink::Dialling how;
    how.kind = fabric::datagram_kind;
    how.ports = {{0, 1}, [] { return false; }, streams_tell};
    Route& route = how.routes.emplace_back();
    route.to = sim::Endpoint{pair.receiver().addresses[rail], 0}.to_sockaddr();
    route.from = sim::Endpoint{pair.sender().addresses[rail], 0}.to_sockaddr();
    rig::SimLink link(pair.world(), pair.sender(), pair.receiver(), how);
    ASSERT_TRUE(link.wait_ready()) << link.error();
    // With HA_NCCL_OOB_IF a stream may begin anywhere.
    EXPECT_EQ(link.sender().attachment().device, streams_tell ? rail : 0);
  }
}

/// Streams of RDMA devices all begin at the first interface.
TEST(SimHandshake, WhereStreamsBeginAtOneNicForAllAConnectionLivesWhereItWasAskedFor) {
  SimPair pair(57, {}, {}, {.rails = 2, .rdma = true});
  rig::SimLink::Dialling how;
  how.kind = pair.sender().provider->devices()[1].kind;
  how.devices = fabric::RailDevices(1);
  how.ports = {{0, 1}, [] { return false; }};
  Route& route = how.routes.emplace_back();
  route.to = sim::Endpoint{pair.receiver().addresses[0], 0}.to_sockaddr();
  route.from = sim::Endpoint{pair.sender().addresses[0], 0}.to_sockaddr();
  rig::SimLink link(pair.world(), pair.sender(), pair.receiver(), how);
  link.step_connecting();
  EXPECT_EQ(link.sender().attachment().device, 1U);
  EXPECT_TRUE(link.wait_ready()) << link.error();
  EXPECT_EQ(link.sender().attachment().device, 1U);
}

/// Two halves of a port, each with a cable's address: the device begins at the first one.
TEST(SimHandshake, AConnectionLivesWhereItsStreamLeads) {
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut);
    SimPair pair(54, {}, {}, {.rails = 2, .one_device = true});
    if (cut) {
      cut_rail(pair, 0, true, true);
    }
    rig::SimLink::Dialling how;
    how.kind = fabric::datagram_kind;
    how.devices = pair.sender().devices;
    how.ports.devices = {how.devices};
    for (size_t rail = 0; rail < 2; ++rail) {
      Route& route = how.routes.emplace_back();
      route.to = sim::Endpoint{pair.receiver().addresses[rail], 0}.to_sockaddr();
      route.from = sim::Endpoint{pair.sender().addresses[rail], 0}.to_sockaddr();
    }
    rig::SimLink link(pair.world(), pair.sender(), pair.receiver(), how);
    const Instant begin = pair.world().now();
    ASSERT_TRUE(link.wait_ready()) << link.error();
    // The first route is silent for 2 s; the path over its rail, which both sides know of, for 3 s.
    EXPECT_LE(pair.world().now() - begin,
              cut ? ha::RouteRounds::patience + milliseconds(3100) : milliseconds(100));
    const size_t rail = cut ? 1 : 0;
    EXPECT_EQ(link.sender().attachment().device, rail);
    EXPECT_EQ(link.sender().devices().devices[0], rail);
    EXPECT_EQ(link.sender().devices().devices[1], 1 - rail);
    EXPECT_EQ(link.receiver().attachment().device, rail) << "where it was arrived at";
  }
}

TEST(SimHandshake, ARouteThatWasSilentIsTriedAgain) {
  SimPair pair(52, {}, {}, {.rails = 2});
  cut_rail(pair, 0, true, true);
  cut_rail(pair, 1, true, true);
  const Instant back = pair.world().now() + milliseconds(4500);
  bool works = false;
  ASSERT_TRUE(pair.connect([&] {
    if (!works && pair.world().now() >= back) {
      works = true;
      cut_rail(pair, 0, false, false);
    }
  })) << pair.error();
  EXPECT_TRUE(works) << "the fault did not happen";
  EXPECT_LE(pair.world().now() - back, seconds(2));
  expect_transfers(pair);
}

TEST(SimHandshake, WhereAllRoutesAreSilentTheyAreNamedWhenTheTimeIsUp) {
  Config config;
  config.connect_timeout_ms = 10000;
  SimPair pair(53, {}, config, {.rails = 2});
  cut_rail(pair, 0, true, true);
  cut_rail(pair, 1, true, true);
  const Instant begin = pair.world().now();
  EXPECT_FALSE(pair.connect());
  EXPECT_GE(pair.world().now() - begin, seconds(10));
  EXPECT_LT(pair.world().now() - begin, milliseconds(10500));
  for (const char* address : {"10.0.0.2 from 10.0.0.1: ", "10.1.0.2 from 10.1.0.1: "}) {
    EXPECT_EQ(occurrences(pair.error(), address + std::string("no answer for 2000 ms")), 1U)
        << pair.error();
  }
}

/// As behind a cable that is cut: after three seconds the kernel knows of nobody there.
TEST(SimHandshake, AHostThatIsNotFoundForAWhileIsDialledAgain) {
  sim::Link gone;
  gone.cut = true;
  gone.no_neighbour = true;
  for (const size_t rails : {1U, 2U}) {
    SCOPED_TRACE(fmt::format("{} rails", rails));
    SimPair pair(54, gone, {}, {.rails = rails});
    const Instant back = pair.world().now() + seconds(12);
    bool works = false;
    ASSERT_TRUE(pair.connect([&] {
      if (!works && pair.world().now() >= back) {
        works = true;
        for (size_t rail = 0; rail < rails; ++rail) {
          pair.set_links({}, {}, rail);
        }
      }
    })) << pair.error();
    EXPECT_TRUE(works) << "the fault did not happen";
    EXPECT_LE(pair.world().now() - back, seconds(5));
    expect_transfers(pair);
  }
  Config config;
  config.connect_timeout_ms = 10000;
  SimPair never(54, gone, config);
  const Instant begin = never.world().now();
  EXPECT_FALSE(never.connect());
  EXPECT_GE(never.world().now() - begin, seconds(10));
  EXPECT_EQ(occurrences(never.error(), "No route to host"), 1U) << never.error();
}

}  // namespace
}  // namespace nccl_ha::test
