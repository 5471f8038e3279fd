// The parts of `nccl-ha lab` that need no rights: topologies, requests, scripts, quoting, and the
// cables between emulated machines.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/rig/guests/forwarder.h"
#include "tests/rig/guests/guests.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"
#include "tools/lab/request.h"
#include "tools/lab/topology.h"

namespace nccl_ha::tools::lab {
namespace {

TEST(LabTopology, PairIsTwoCablesAndAManagementSwitch) {
  const auto pair = parse_topology("pair");
  ASSERT_TRUE(pair) << pair.error().message();
  EXPECT_EQ(pair->hosts, (std::vector<std::string>{"h1", "h2"}));
  ASSERT_EQ(pair->links.size(), 4U);
  EXPECT_EQ(pair->links[0].name, "rail0");
  EXPECT_FALSE(pair->links[0].to_switch());
  EXPECT_EQ(pair->links[2].name, "h1.mgmt");
  EXPECT_TRUE(pair->links[2].to_switch());
  EXPECT_EQ(pair->links[2].medium, pair->links[3].medium);
  std::set<std::string> addresses;
  for (const Port& port : pair->ports) {
    EXPECT_TRUE(addresses.insert(port.address).second) << port.address;
  }
}

TEST(LabTopology, EveryKindHasTheLinksItsNameSays) {
  struct Expected {
    const char* name;
    size_t hosts;
    size_t links;  // without the management network's
  };
  for (const auto& [name, hosts, links] :
       {Expected{"rails-2x1", 2, 1}, Expected{"rails-4x2", 4, 8}, Expected{"ring-5", 5, 5},
        Expected{"line-5", 5, 4}, Expected{"star-3", 4, 3}, Expected{"islands", 4, 8},
        Expected{"islands-3", 6, 12}, Expected{"rails-1x2", 1, 2}, Expected{"mesh-8", 8, 11},
        Expected{"mesh-8-7", 8, 11}, Expected{"mesh-2", 2, 1}, Expected{"gb10-4", 4, 8},
        Expected{"plan-ring", 4, 4}, Expected{"plan-line", 4, 3}}) {
    const auto made = parse_topology(name);
    ASSERT_TRUE(made) << name << ": " << made.error().message();
    EXPECT_EQ(made->hosts.size(), hosts) << name;
    EXPECT_EQ(made->links.size(), links + hosts) << name;
    for (const Port& port : made->ports) {
      EXPECT_LT(port.interface.size(), 16U) << "the kernel takes no longer names";
    }
  }
}

std::set<std::string> interfaces_of(const Topology& topology, size_t host) {
  std::set<std::string> found;
  for (const Port& port : topology.ports) {
    if (port.host == host && !port.management) {
      EXPECT_TRUE(found.insert(port.interface + " " + port.address).second);
    }
  }
  return found;
}

/// Seed 002, 4.3.
TEST(LabTopology, FourHostsAreNumberedAsThePlansSay) {
  const auto ring = parse_topology("plan-ring").value();
  const auto line = parse_topology("plan-line").value();
  using Names = std::set<std::string>;
  EXPECT_EQ(interfaces_of(ring, 0), (Names{"nic1 192.168.100.1", "nic2 192.168.101.1"}));
  EXPECT_EQ(interfaces_of(ring, 1), (Names{"nic1 192.168.101.2", "nic2 192.168.102.2"}));
  EXPECT_EQ(interfaces_of(ring, 3), (Names{"nic1 192.168.103.4", "nic2 192.168.100.4"}));
  EXPECT_EQ(interfaces_of(line, 0), (Names{"nic1 192.168.100.1"}));
  EXPECT_EQ(interfaces_of(line, 1), (Names{"nic1 192.168.100.2", "nic2 192.168.101.2"}));
  EXPECT_EQ(interfaces_of(line, 3), (Names{"nic1 192.168.102.4"}));
}

TEST(LabTopology, ARandomMeshIsWholeAndRepeats) {
  for (const char* name : {"mesh-8-1", "mesh-8-2", "mesh-40-3"}) {
    const auto mesh = parse_topology(name).value();
    std::set<size_t> reached{0};
    for (bool more = true; more;) {
      const size_t before = reached.size();
      for (const Link& link : mesh.links) {
        if (!link.to_switch()) {
          const size_t one = mesh.ports[link.ports[0]].host;
          const size_t other = mesh.ports[link.ports[1]].host;
          EXPECT_NE(one, other);
          if (reached.contains(one) || reached.contains(other)) {
            reached.insert({one, other});
          }
        }
      }
      more = reached.size() != before;
    }
    EXPECT_EQ(reached.size(), mesh.hosts.size()) << name;
    EXPECT_EQ(parse_topology(name)->links[3].name, mesh.links[3].name);
  }
}

TEST(LabTopology, BothDevicesOfAPortLeadToOneNeighbour) {
  const auto ring = parse_topology("gb10-4").value();
  EXPECT_EQ(interfaces_of(ring, 2).size(), 4U);
  const auto cable = ring.find("h4-h1", {});
  ASSERT_TRUE(cable);
  EXPECT_EQ(cable->size(), 2U);
  for (const LinkChoice& half : *cable) {
    EXPECT_EQ(ring.ports[ring.links[half.link].ports[0]].host, 3U);
    EXPECT_EQ(ring.ports[ring.links[half.link].ports[1]].host, 0U);
    EXPECT_EQ(ring.ports[ring.links[half.link].ports[0]].address, "");
  }
}

TEST(LabTopology, RefusesWhatItCannotMake) {
  for (const char* name :
       {"",        "cube",     "ring-2",    "ring-65",   "ring-",   "ring-x",
        "line-1",  "star-0",   "rails-0x1", "rails-2x9", "rails-2", "rails-2x",
        "flat-2",  "flat-2x9", "islands-0", "islands-",  "mesh-1",  "mesh-65",
        "mesh-8-", "mesh-",    "gb10-2",    "gb10",      "plan",    "plan-star"}) {
    EXPECT_FALSE(parse_topology(name)) << name;
  }
}

TEST(LabTopology, RailsOfAFlatOneAreInOneSwitchAndOneSubnet) {
  const auto flat = parse_topology("flat-2x2");
  ASSERT_TRUE(flat);
  const auto rails = flat->find("rail0", {}).value();
  ASSERT_EQ(rails.size(), 2U);
  for (const char* name : {"h1.rail0", "h1.rail1", "h2.rail0", "h2.rail1"}) {
    const auto found = flat->find(name, {});
    ASSERT_TRUE(found) << name;
    const Link& link = flat->links[found->front().link];
    EXPECT_EQ(link.medium, flat->links[rails.front().link].medium) << name;
    EXPECT_EQ(flat->ports[link.ports[0]].prefix_len, 16U) << name;
  }
}

TEST(LabTopology, NamesMeanLinksGroupsAndInterfaces) {
  const auto rails = parse_topology("rails-3x2");
  ASSERT_TRUE(rails);
  EXPECT_EQ(rails->find("rail1", {})->size(), 3U);
  EXPECT_EQ(rails->find("h2.rail1", {})->size(), 1U);
  EXPECT_EQ(rails->find("mgmt", {})->size(), 3U);
  EXPECT_FALSE(rails->find("rail2", {}));
  const auto pair = parse_topology("pair");
  ASSERT_TRUE(pair);
  const auto named_by_end = pair->find("h2.rail0", {});
  ASSERT_TRUE(named_by_end);
  EXPECT_EQ((*named_by_end)[0].link, 0U);
}

TEST(LabTopology, ASwappedCableLeadsToTheOtherSwitch) {
  auto rails = parse_topology("rails-3x2").value();
  const auto medium = [&](const char* name) {
    return rails.links[rails.find(name, {})->front().link].medium;
  };
  ASSERT_NE(medium("h1.rail0"), medium("h1.rail1"));
  ASSERT_TRUE(rails.swap("h3.rail0", "h3.rail1"));
  EXPECT_EQ(medium("h3.rail0"), medium("h1.rail1"));
  EXPECT_EQ(medium("h3.rail1"), medium("h1.rail0"));
  EXPECT_EQ(medium("h2.rail0"), medium("h1.rail0")) << "the others stay";
  EXPECT_FALSE(rails.swap("h3.rail0", "h3.rail2")) << "there is none";
  EXPECT_FALSE(rails.swap("rail0", "rail1")) << "of which host";
  EXPECT_FALSE(parse_topology("pair").value().swap("h2.rail0", "h2.rail1")) << "no switch";
}

TEST(LabTopology, SidesChooseDirections) {
  const auto pair = parse_topology("pair");
  const auto rails = parse_topology("rails-3x1");
  ASSERT_TRUE(pair && rails);
  using Ways = std::array<bool, 2>;
  EXPECT_EQ((*pair->find("rail0", {}))[0].direction, (Ways{true, true}));
  EXPECT_EQ((*pair->find("rail0", {"h1", ""}))[0].direction, (Ways{true, false}));
  EXPECT_EQ((*pair->find("rail0", {"h2", ""}))[0].direction, (Ways{false, true}));
  EXPECT_EQ((*pair->find("rail0", {"", "h2"}))[0].direction, (Ways{true, false}));
  // At a switch, a group with a side is the one link that ends at that host.
  const auto received = rails->find("rail0", {"", "h2"});
  ASSERT_TRUE(received);
  ASSERT_EQ(received->size(), 1U);
  EXPECT_EQ((*received)[0].direction, (Ways{false, true}));
  EXPECT_FALSE(pair->find("rail0", {"h9", ""}));
  EXPECT_FALSE(rails->find("h1.rail0", {"h2", ""}));
}

TEST(LabRequest, CutSlowLoseHealAddUpAndAreUndone) {
  const LinkChoice both;
  const LinkChoice first{0, {true, false}};
  LinkState state;
  Request request;
  request.verb = Verb::lose;
  request.amount = "2.5%";
  state = *changed(state, both, request);
  request.verb = Verb::slow;
  request.amount = "1.5gbit";
  state = *changed(state, first, request);
  EXPECT_EQ(state.direction[0].loss, 25000U);
  EXPECT_EQ(state.direction[0].bits_per_second, 1500000000U);
  EXPECT_EQ(state.direction[1].bits_per_second, 0U);
  request.verb = Verb::cut;
  state = *changed(state, both, request);
  EXPECT_FALSE(state.carrier);
  request.verb = Verb::heal;
  EXPECT_EQ(*changed(state, both, request), LinkState());
  request.cable = true;  // as after cut --for
  LinkState joined = *changed(state, both, request);
  EXPECT_TRUE(joined.carrier);
  EXPECT_EQ(joined.direction[0].bits_per_second, 1500000000U);
  EXPECT_EQ(joined.direction[1].loss, 25000U);
}

TEST(LabRequest, OneDirectionIsCutSilentlyOnly) {
  Request request;
  request.verb = Verb::cut;
  request.side.sender = "h1";
  EXPECT_FALSE(changed({}, {0, {true, false}}, request));
  request.silent = true;
  const auto state = changed({}, {0, {true, false}}, request);
  ASSERT_TRUE(state);
  EXPECT_TRUE(state->carrier);
  EXPECT_TRUE(state->direction[0].blocked);
  EXPECT_FALSE(state->direction[1].blocked);
}

TEST(LabRequest, AmountsHaveUnitsAndLimits) {
  EXPECT_EQ(*parse_rate("64kbit"), 64000U);
  EXPECT_EQ(*parse_loss("0.1"), 1000U);
  EXPECT_EQ(*parse_loss("100%"), loss_whole);
  for (const char* bad : {"", "100", "1mb", "-1mbit", "nanmbit", "1e99gbit", "1bit", "mbit"}) {
    EXPECT_FALSE(parse_rate(bad)) << bad;
  }
  EXPECT_EQ(*parse_mtu("1500"), 1500U);
  for (const char* bad : {"", "1500b", "67", "65536", "-1"}) {
    EXPECT_FALSE(parse_mtu(bad)) << bad;
  }
  for (const char* bad : {"", "x", "101%", "-1", "inf", "5 percent"}) {
    EXPECT_FALSE(parse_loss(bad)) << bad;
  }
}

TEST(LabRequest, SurvivesTheWayThroughJson) {
  Request request;
  request.verb = Verb::cut;
  request.target = "rail0";
  request.silent = true;
  request.side.sender = "h1";
  const auto back = request_from_json(to_json(request));
  ASSERT_TRUE(back);
  EXPECT_EQ(to_text(*back), "cut rail0 --silent --from h1");
  EXPECT_FALSE(request_from_json(nlohmann::json::parse("[]")));
  EXPECT_FALSE(request_from_json(nlohmann::json::parse(R"({"verb":"fly"})")));
  EXPECT_FALSE(request_from_json(nlohmann::json::parse(R"({"verb":"cut","silent":1})")));
  EXPECT_FALSE(request_from_json(nlohmann::json::parse(R"({"verb":"cut","lasts":1})")));
  EXPECT_FALSE(request_from_json(nlohmann::json::parse(R"({"verb":"cut","target":{}})")));
}

TEST(LabScript, StepsComeByTime) {
  const auto steps = parse_script(
      "5s heal rail0 # later, and more\n2s cut rail0 --silent --from h1; 250ms kill h2\n\n"
      "# nothing\n1.5s slow rail1 100mbit");
  ASSERT_TRUE(steps) << steps.error().message();
  ASSERT_EQ(steps->size(), 4U);
  EXPECT_EQ((*steps)[0].after, std::chrono::milliseconds(250));
  EXPECT_EQ((*steps)[0].request.verb, Verb::kill);
  EXPECT_EQ(to_text((*steps)[2].request), "cut rail0 --silent --from h1");
  EXPECT_EQ((*steps)[3].request.verb, Verb::heal);
}

TEST(LabScript, SaysWhichStepIsWrong) {
  for (const char* bad : {"2s", "2 cut rail0", "-1s cut rail0", "2s fly rail0", "2s cut",
                          "2s slow rail0", "2s slow rail0 fast", "2s lose rail0 200%",
                          "2s cut rail0 --from h1", "90000s cut rail0", "2s show"}) {
    const auto steps = parse_script(std::string("1s heal;") + bad);
    ASSERT_FALSE(steps) << bad;
    EXPECT_NE(steps.error().what.find("script"), std::string::npos) << steps.error().what;
  }
}

TEST(LabGuests, AShellLineRunsTheCommandAsItWas) {
  HostCommand command;
  command.arguments = {"printf",      "%s|",        "it's", "a \"b\"", "$HOME `id`",
                       "back\\slash", "two\nlines", "\t",   "",        "é"};
  command.environment["NHA_TEST_WORD"] = "x'y\n$z";
  command.arguments.emplace_back("!");
  const std::string line = shell_line(command, "/tmp");
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto run = tests::run_program("/bin/bash", {"-c", line});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.out, "it's|a \"b\"|$HOME `id`|back\\slash|two\nlines|\t||é|!|");
  command.arguments = {"printenv", "NHA_TEST_WORD"};
  EXPECT_EQ(tests::run_program("/bin/bash", {"-c", shell_line(command, "/tmp")}).out, "x'y\n$z\n");
  EXPECT_EQ(tests::run_program("/bin/bash", {"-c", shell_line(command, "/no/such")}).status, 125);
}

/// Machines' ends of the forwarder's cables.
class ForwarderTest : public testing::Test {
 protected:
  void start(const char* topology) {
    topology_ = *parse_topology(topology);
    for (size_t port = 0; port < topology_.ports.size(); ++port) {
      sockets_.emplace_back(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      sockaddr_un address = at(machine_socket(directory_, port));
      ASSERT_EQ(bind(sockets_.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address),
                0);
    }
    const auto started = forwarder_.start(topology_, directory_, [] {});
    ASSERT_TRUE(started) << started.error().message();
  }
  static sockaddr_un at(const std::filesystem::path& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.native().copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  static std::string frame(size_t target, size_t source, const std::string& text) {
    std::string made(12, '\2');
    made[5] = static_cast<char>(target);
    made[11] = static_cast<char>(source);
    return made + "\x88\xb5" + text;
  }
  void send(size_t port, const std::string& frame) {
    const sockaddr_un to = at(forwarder_socket(directory_, port));
    ASSERT_EQ(sendto(sockets_[port].get(), frame.data(), frame.size(), 0,
                     reinterpret_cast<const sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(frame.size()));
  }
  /// The next frame of a port; empty when none comes within `limit_ms`.
  std::string receive(size_t port, int limit_ms = 10000) {
    pollfd wait{sockets_[port].get(), POLLIN, 0};
    if (poll(&wait, 1, limit_ms) != 1) {
      return {};
    }
    char buffer[4096];
    const ssize_t got = recv(wait.fd, buffer, sizeof buffer, 0);
    return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  }

  tests::TemporaryFolder temporary_;
  const std::filesystem::path directory_{temporary_.path()};
  Topology topology_;
  std::vector<Fd> sockets_;
  Forwarder forwarder_;
};

TEST_F(ForwarderTest, ACableCarriesFramesInOrderAndCountsThem) {
  start("rails-2x1");
  for (int i = 0; i < 100; ++i) {
    send(0, frame(2, 1, std::to_string(i)));
    EXPECT_EQ(receive(1), frame(2, 1, std::to_string(i)));
  }
  send(1, frame(1, 2, "back"));
  EXPECT_EQ(receive(0), frame(1, 2, "back"));
  EXPECT_EQ(forwarder_.counters()[0][0].frames, 100U);
  EXPECT_EQ(forwarder_.counters()[0][1].frames, 1U);
}

TEST_F(ForwarderTest, ASwitchFloodsUntilItHasLearned) {
  start("rails-3x1");
  send(0, frame(2, 1, "who"));
  EXPECT_EQ(receive(1), frame(2, 1, "who"));
  EXPECT_EQ(receive(2), frame(2, 1, "who"));
  send(1, frame(1, 2, "me"));
  EXPECT_EQ(receive(0), frame(1, 2, "me"));
  send(0, frame(2, 1, "you"));
  EXPECT_EQ(receive(1), frame(2, 1, "you"));
  // What is flooded next comes first to port 2: the two frames before did not.
  send(0, frame(9, 1, "all"));
  EXPECT_EQ(receive(2), frame(9, 1, "all"));
}

TEST_F(ForwarderTest, ASilentCutStopsOneDirectionAndIsCounted) {
  start("rails-2x1");
  LinkState state;
  state.direction[0].blocked = true;
  forwarder_.set(0, state);
  send(0, frame(2, 1, "lost"));
  send(1, frame(1, 2, "arrives"));
  EXPECT_EQ(receive(0), frame(1, 2, "arrives"));
  state.direction[0].blocked = false;
  forwarder_.set(0, state);
  send(0, frame(2, 1, "after"));
  EXPECT_EQ(receive(1), frame(2, 1, "after"));
  EXPECT_EQ(forwarder_.counters()[0][0].dropped, 1U);
}

TEST_F(ForwarderTest, AnMtuLetsLargerFramesVanish) {
  start("rails-2x1");
  LinkState state;
  state.mtu = 1500;
  forwarder_.set(0, state);
  send(0, frame(2, 1, std::string(1501, 'x')));
  send(0, frame(2, 1, std::string(1500, 'y')));
  EXPECT_EQ(receive(1), frame(2, 1, std::string(1500, 'y')));
  EXPECT_EQ(forwarder_.counters()[0][0].dropped, 1U);
}

TEST_F(ForwarderTest, LossIsAboutWhatWasAsked) {
  start("rails-2x1");
  LinkState state;
  state.direction[0].loss = loss_whole / 2;
  forwarder_.set(0, state);
  constexpr int sent = 400;
  for (int i = 0; i < sent; ++i) {
    send(0, frame(2, 1, "x"));
    // Nobody empties the queue of a socket but us: what arrives is taken at once.
    while (!receive(1, 0).empty()) {
    }
  }
  send(1, frame(1, 2, "end"));
  EXPECT_EQ(receive(0), frame(1, 2, "end"));
  const uint64_t dropped = forwarder_.counters()[0][0].dropped;
  // Six standard deviations to either side.
  EXPECT_GT(dropped, 140U);
  EXPECT_LT(dropped, 260U);
}

TEST_F(ForwarderTest, ASlowLinkTakesItsTime) {
  start("rails-2x1");
  LinkState state;
  state.direction[0].bits_per_second = 800000;  // a frame of 1000 bytes takes 10 ms
  forwarder_.set(0, state);
  SteadyClock clock;
  const Instant started = clock.now();
  const std::string kilobyte = frame(2, 1, std::string(986, 'x'));
  for (int i = 0; i < 5; ++i) {
    send(0, kilobyte);
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(receive(1), kilobyte);
  }
  EXPECT_GE(clock.now() - started, std::chrono::milliseconds(49));
}

}  // namespace
}  // namespace nccl_ha::tools::lab
