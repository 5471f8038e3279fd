// Handshakes over the only network there is, which goes away meanwhile: what was said is lost, and
// a kernel says it again less and less often.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "tests/rig/runs/pair.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::test {
namespace {

using rig::SimCables;
using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// The network between both, from a moment on, in one direction or both.
class Outage {
 public:
  Outage(SimPair& pair, Instant at, Duration lasts, const sim::Link& there, const sim::Link& back)
      : pair_(pair), at_(at), lasts_(lasts), there_(there), back_(back) {
    pair_.world().network().stop_at(at);
  }
  void look() {
    const Instant now = pair_.world().now();
    if (!begun_ && now >= at_) {
      begun_ = now;
      pair_.world().network().stop_at(now + lasts_);
      before_ = pair_.world().network().all;
      pair_.set_links(there_, back_);
    } else if (begun_ && !over_ && now >= *begun_ + lasts_) {
      end();
    }
  }
  void end() {
    over_ = pair_.world().now();
    pair_.set_links(before_, before_);
  }
  /// When it was over; nothing: it was not while somebody looked.
  std::optional<Instant> over() const { return over_; }

 private:
  SimPair& pair_;
  const Instant at_;
  const Duration lasts_;
  const sim::Link there_;
  const sim::Link back_;
  sim::Link before_;
  std::optional<Instant> begun_;
  std::optional<Instant> over_;
};

sim::Link no_network(int dial_error = 0) {
  sim::Link link;
  link.cut = true;
  link.dial_error = dial_error;
  return link;
}

/// Some end just when something was said again, some between two times, and some so late that the
/// acceptor has given up who had not said hello.
constexpr milliseconds outages[] = {milliseconds(1400), milliseconds(1700), milliseconds(2000),
                                    milliseconds(7100), milliseconds(15100)};
/// By then the last word of a stream that was let go of has come, and who waits has given up.
constexpr seconds late_enough(40);

struct OutageHosts {
  SimCables cables{};
  Config sender{};
  Config receiver{};
  Duration command{};  ///< at most, of their devices
};

/// Both hosts connect while the network is away at some point of it, in each direction, for each of
/// `outages`; when it is back they have a connection within `bound`, and nothing but that is left.
/// How often the network was back before they were connected.
size_t connect_through_outages(const OutageHosts& hosts, Duration bound) {
  const auto make = [&] {
    auto pair =
        std::make_unique<SimPair>(64, sim::Link{}, hosts.sender, hosts.cables, hosts.receiver);
    for (sim::Process* process : {&pair->sender(), &pair->receiver()}) {
      for (const auto& nic : process->nics) {
        nic->verbs().faults.slow = hosts.command > Duration(0) ? 1 : 0;
        nic->verbs().faults.slowest = hosts.command;
      }
    }
    return pair;
  };
  const auto undisturbed = make();
  const Instant begin = undisturbed->world().now();
  EXPECT_TRUE(undisturbed->connect()) << undisturbed->error();
  const Duration takes = undisturbed->world().now() - begin;
  const size_t needed = actors(undisturbed->receiver());
  const auto points = static_cast<int>(sim_alike(12));
  size_t through = 0;
  for (const auto& [there, back] : {std::pair{true, true}, {true, false}, {false, true}}) {
    for (const milliseconds away : outages) {
      for (int point = 0; point < points && !testing::Test::HasFailure(); ++point) {
        SCOPED_TRACE(fmt::format("cut there {}, back {}, at point {} for {} ms", there, back, point,
                                 away.count()));
        const auto pair = make();
        Outage outage(*pair, pair->world().now() + takes * point / points, away,
                      there ? no_network() : sim::Link{}, back ? no_network() : sim::Link{});
        EXPECT_TRUE(pair->connect([&] { outage.look(); })) << pair->error();
        if (outage.over()) {
          ++through;
          EXPECT_LE(pair->world().now() - *outage.over(), bound);
        }
        outage.end();
        expect_transfers(*pair);
        pass(*pair, late_enough);
        EXPECT_FALSE(pair->link().listener().failed());
        EXPECT_EQ(actors(pair->receiver()), needed) << "what was begun in vain is still there";
        expect_transfers(*pair);
      }
    }
  }
  EXPECT_GT(through, static_cast<size_t>(points)) << "the network was not away";
  return through;
}

TEST(SimHandshakeOutage, IsNoticedWhenItIsOver) {
  const ErrorsOnly quiet;
  for (const bool rdma : {false, true}) {
    for (const int64_t threads : {1, 2}) {
      SCOPED_TRACE(fmt::format("rdma {}, {} threads", rdma, threads));
      OutageHosts hosts;
      hosts.cables.rdma = rdma;
      hosts.sender.progress_threads = hosts.receiver.progress_threads = threads;
      connect_through_outages(hosts, milliseconds(1500));
    }
  }
}

/// Queue pairs that take seconds: nobody begins anew because of them alone.
TEST(SimHandshakeOutage, WithSlowDevicesCostsNoMoreThanTheyDo) {
  const ErrorsOnly quiet;
  OutageHosts hosts;
  hosts.cables.rdma = true;
  hosts.command = milliseconds(700);
  connect_through_outages(hosts, seconds(15));
}

/// Before there is a hello the acceptor cannot ask, and waits for one no longer than that.
TEST(SimHandshakeOutage, WhileKeysAreShownIsNoticedWhenTheAcceptorWaitsNoMore) {
  const ErrorsOnly quiet;
  const tests::TemporaryFolder folder;
  const std::string file = folder.path() + "/keys";
  std::ofstream(file) << "1 " << std::string(64, 'a') << "\n";
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  OutageHosts hosts;
  hosts.sender.key_file = hosts.receiver.key_file = file;
  connect_through_outages(hosts,
                          milliseconds(hosts.sender.handshake_timeout_ms) + milliseconds(500));
  // An acceptor that stands still has what the connector said, and answers while nothing arrives.
  SimPair pair(66, {}, hosts.sender, {}, hosts.receiver);
  const Instant begin = pair.world().now();
  Outage outage(pair, begin + milliseconds(100), milliseconds(7100), no_network(), no_network());
  bool stands = false;
  ASSERT_TRUE(pair.connect([&] {
    outage.look();
    if (!stands && pair.world().network().tcp().counts().bytes != 0) {
      stands = true;
      pair.world().pause(pair.receiver(), begin + milliseconds(200));
    }
  })) << pair.error();
  ASSERT_TRUE(stands && outage.over()) << "the keys were shown before";
  EXPECT_LE(pair.world().now() - *outage.over(), milliseconds(1500));
  expect_transfers(pair);
}

/// Such a connection has no name by which it could be begun anew, and the kernel has its time.
TEST(SimHandshakeOutage, WithoutFailoverEndsNothing) {
  const ErrorsOnly quiet;
  for (const auto& [sender, receiver] : {std::pair{false, true}, {true, false}, {false, false}}) {
    SCOPED_TRACE(fmt::format("failover at the sender {}, at the receiver {}", sender, receiver));
    OutageHosts hosts;
    hosts.sender.enable_backup = sender;
    hosts.receiver.enable_backup = receiver;
    connect_through_outages(hosts, seconds(15));
  }
}

/// As where a daemon takes the address of a port without link away.  The hello is lost with it.
TEST(SimHandshakeOutage, ThatTakesTheRouteAlongEndsNothing) {
  const ErrorsOnly quiet;
  for (const int error : {ENETUNREACH, ENETDOWN, EADDRNOTAVAIL, EHOSTUNREACH}) {
    SCOPED_TRACE(fmt::format("errno {}", error));
    sim::Link slow;
    slow.delay = milliseconds(10);
    SimPair pair(65, slow);
    Outage outage(pair, pair.world().now() + milliseconds(25), seconds(12), no_network(error),
                  no_network(error));
    ASSERT_TRUE(pair.connect([&] { outage.look(); })) << pair.error();
    ASSERT_TRUE(outage.over()) << "the hello had arrived";
    EXPECT_LE(pair.world().now() - *outage.over(), milliseconds(1500));
    expect_transfers(pair);
  }
}

}  // namespace
}  // namespace nccl_ha::test
