// Every order of events that a pair of lanes can see, with a bounded number of failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ha/lane.h"

namespace nccl_ha::ha {
namespace {

/// What both sides and the control stream between them are like at one moment.
struct Pair {
  struct Said {
    enum Kind : char { suspect = 'd', down = 'D', fenced = 'f', rebuild = 'r', rebuilt = 'R' } kind;
    uint32_t epoch;
  };
  SenderLane sender;
  ReceiverLane receiver;
  std::deque<Said> to_receiver;
  std::deque<Said> to_sender;
  bool sender_up = true;  ///< its queue pair takes and sends packets
  bool receiver_up = true;
  bool sender_drained = false;
  bool receiver_drained = false;
  bool sender_proven = true;  ///< its device is through with what was posted
  bool connected = true;      ///< the sender knows the receiver's address
  bool reopen_due = false;
  bool reported = false;  ///< the sender has heard of this epoch's fence
  bool rebuilt = true;    ///< and of its new path
  int failures = 0;       ///< so far
  std::string wrong;

  std::string key() const {
    std::string out;
    auto add = [&](auto value) { out += std::to_string(static_cast<int>(value)) + ","; };
    add(sender.state());
    add(sender.epoch());
    add(receiver.state());
    add(receiver.epoch());
    for (const bool flag : {sender_up, receiver_up, sender_drained, receiver_drained, sender_proven,
                            connected, reopen_due, reported, rebuilt}) {
      add(flag);
    }
    add(failures);
    for (const auto* queue : {&to_receiver, &to_sender}) {
      out += '|';
      for (const Said& said : *queue) {
        out += static_cast<char>(said.kind);
        out += std::to_string(said.epoch);
      }
    }
    return out;
  }
};

void act(Pair& pair, const SenderSteps& steps) {
  if (steps.protocol_error) {
    pair.wrong = "the sender is protocol_error";
  }
  if (steps.take_down) {
    pair.sender_up = false;
    pair.sender_drained = false;
    pair.reported = false;
  }
  if (steps.say_down) {
    if (pair.sender_up || !pair.sender_drained) {
      pair.wrong = "says that it is down while something may still move";
    }
    if (pair.sender_proven != pair.sender.proven()) {
      pair.wrong = "says of its device what is not so";
    }
    pair.to_receiver.push_back({Pair::Said::down, pair.sender.epoch()});
  }
  if (steps.apply_report) {
    if (pair.sender_up || !pair.sender_drained || pair.receiver_up || !pair.receiver_drained) {
      pair.wrong = "settles while something may still move";
    }
    if (pair.sender.epoch() != pair.receiver.epoch()) {
      pair.wrong = "settles by the report of another epoch";
    }
  }
  if (steps.reopen && !pair.sender_proven) {
    pair.wrong = "replaces a path while its device may still write";
  }
  if (steps.abandon) {
    pair.sender_proven = false;
    pair.sender_drained = true;
    act(pair, pair.sender.on_drained());
  }
  pair.reopen_due = pair.reopen_due || steps.reopen;
  if (steps.connect) {
    pair.connected = true;
  }
}

void act(Pair& pair, const ReceiverSteps& steps) {
  if (steps.protocol_error) {
    pair.wrong = "the receiver is protocol_error";
  }
  if (steps.take_down) {
    pair.receiver_up = false;
    pair.receiver_drained = false;
  }
  if (steps.say_suspect) {
    pair.to_sender.push_back({Pair::Said::suspect, pair.receiver.epoch()});
  }
  if (steps.report) {
    if (pair.receiver_up || !pair.receiver_drained) {
      pair.wrong = "reports before its fence";
    }
    pair.to_sender.push_back({Pair::Said::fenced, pair.receiver.epoch()});
  }
  if (steps.open) {
    pair.receiver_up = true;
    pair.receiver_drained = false;
    pair.to_sender.push_back({Pair::Said::rebuilt, pair.receiver.epoch()});
  }
}

void deliver_to_receiver(Pair& pair) {
  const Pair::Said said = pair.to_receiver.front();
  pair.to_receiver.pop_front();
  act(pair, said.kind == Pair::Said::down ? pair.receiver.on_down(said.epoch)
                                          : pair.receiver.on_rebuild(said.epoch));
}

void deliver_to_sender(Pair& pair) {
  const Pair::Said said = pair.to_sender.front();
  pair.to_sender.pop_front();
  pair.reported = pair.reported || said.kind == Pair::Said::fenced;
  pair.rebuilt =
      pair.rebuilt || (said.kind == Pair::Said::rebuilt && said.epoch == pair.sender.epoch());
  act(pair, said.kind == Pair::Said::suspect  ? pair.sender.on_suspect(said.epoch)
            : said.kind == Pair::Said::fenced ? pair.sender.on_fenced(said.epoch)
                                              : pair.sender.on_rebuilt(said.epoch));
}

/// Everything that may happen next.
std::vector<Pair> successors(const Pair& from, int failures_max) {
  std::vector<Pair> next;
  auto branch = [&](auto change) {
    Pair one = from;
    change(one);
    next.push_back(std::move(one));
  };
  if (!from.to_receiver.empty()) {
    branch(deliver_to_receiver);
  }
  if (!from.to_sender.empty()) {
    branch(deliver_to_sender);
  }
  if (!from.sender_up && !from.sender_drained) {
    branch([](Pair& one) {
      one.sender_drained = true;
      act(one, one.sender.on_drained());
    });
  }
  if (!from.sender_up && !from.sender_drained) {
    branch([](Pair& one) { act(one, one.sender.on_unproven()); });
  }
  if (!from.sender_proven) {
    branch([](Pair& one) {
      one.sender_proven = true;
      act(one, one.sender.on_proven());
    });
  }
  if (!from.receiver_up && !from.receiver_drained) {
    branch([](Pair& one) {
      one.receiver_drained = true;
      act(one, one.receiver.on_drained());
    });
  }
  if (from.reopen_due) {
    branch([](Pair& one) {
      one.reopen_due = false;
      one.sender_up = true;
      one.connected = false;
      one.rebuilt = false;
      one.sender.reopened();
      one.to_receiver.push_back({Pair::Said::rebuild, one.sender.epoch()});
    });
  }
  const bool joined = from.sender_up && from.receiver_up && from.connected &&
                      from.sender.epoch() == from.receiver.epoch();
  if (joined && from.sender.state() == SenderLane::State::opening) {
    branch([](Pair& one) { act(one, one.sender.on_ready()); });
  }
  if (joined && from.receiver.state() == ReceiverLane::State::opening) {
    branch([](Pair& one) { act(one, one.receiver.on_ready()); });
  }
  if (from.failures < failures_max) {
    if (from.sender_up) {
      branch([](Pair& one) {
        ++one.failures;
        act(one, one.sender.on_failed());
      });
    }
    if (from.receiver_up) {
      branch([](Pair& one) {
        ++one.failures;
        act(one, one.receiver.on_failed());
      });
    }
  }
  return next;
}

/// Everything that can follow from `start`; the highest epoch in the end.
uint32_t explore(const Pair& start, int failures_max) {
  std::set<std::string> seen{start.key()};
  std::deque<Pair> open{start};
  size_t ends = 0;
  uint32_t latest = 0;
  while (!open.empty()) {
    const Pair pair = open.front();
    open.pop_front();
    const std::vector<Pair> next = successors(pair, failures_max);
    if (next.empty()) {
      ++ends;
      EXPECT_EQ(pair.sender.state(), SenderLane::State::usable) << pair.key();
      EXPECT_EQ(pair.receiver.state(), ReceiverLane::State::usable) << pair.key();
      EXPECT_EQ(pair.sender.epoch(), pair.receiver.epoch()) << pair.key();
      EXPECT_TRUE(pair.sender_up && pair.receiver_up) << pair.key();
      latest = std::max(latest, pair.sender.epoch());
    }
    for (const Pair& one : next) {
      if (!one.wrong.empty()) {
        ADD_FAILURE() << one.wrong << ": " << pair.key() << " -> " << one.key();
        return 0;
      }
      if (seen.insert(one.key()).second) {
        open.push_back(one);
      }
    }
  }
  EXPECT_GT(seen.size(), 500U);
  EXPECT_GT(ends, 1U);
  return latest;
}

TEST(Lane, EveryOrderOfEventsEndsWithBothSidesUsable) {
  constexpr int failures_max = 8;
  Pair start;
  act(start, start.sender.on_ready());
  act(start, start.receiver.on_ready());
  EXPECT_EQ(explore(start, failures_max), static_cast<uint32_t>(failures_max))
      << "a failure cost no epoch";
}

TEST(Lane, ALaneWithoutAPathIsMadeLikeOneThatLostIt) {
  constexpr int failures_max = 6;
  Pair start;
  start.sender = SenderLane(SenderLane::State::down);
  start.receiver = ReceiverLane(ReceiverLane::State::fenced);
  start.sender_up = start.receiver_up = false;
  start.sender_drained = start.receiver_drained = true;
  start.reopen_due = true;
  EXPECT_EQ(explore(start, failures_max), static_cast<uint32_t>(failures_max + 1));
}

TEST(Lane, ALaneThatMayMoveWaitsForNoProof) {
  SenderLane sender(SenderLane::State::down, true);
  sender.reopened();
  static_cast<void>(sender.on_rebuilt(1));
  static_cast<void>(sender.on_ready());
  static_cast<void>(sender.on_failed());
  EXPECT_EQ(sender.on_unproven(), SenderSteps{.abandon = true});
  EXPECT_EQ(sender.on_drained(), SenderSteps{.say_down = true});
  EXPECT_FALSE(sender.proven());
  EXPECT_EQ(sender.on_fenced(1), (SenderSteps{.apply_report = true, .reopen = true}));
  EXPECT_EQ(sender.on_proven(), SenderSteps{}) << "it is being made already";
  sender.reopened();
  EXPECT_TRUE(sender.proven()) << "of the new path";
  EXPECT_EQ(sender.broken(), nullptr);
}

TEST(Lane, MessagesThatThePeerCannotHaveMeantAreFaults) {
  SenderLane sender;
  static_cast<void>(sender.on_ready());
  EXPECT_TRUE(sender.on_suspect(1).protocol_error) << "of an epoch that was never made";
  EXPECT_TRUE(sender.on_fenced(0).protocol_error) << "nobody asked";
  EXPECT_TRUE(sender.on_rebuilt(0).protocol_error);
  EXPECT_EQ(sender.on_failed(), SenderSteps{.take_down = true});
  EXPECT_EQ(sender.on_failed(), SenderSteps{}) << "once is enough";
  EXPECT_EQ(sender.on_suspect(0), SenderSteps{});
  EXPECT_TRUE(SenderLane(sender).on_fenced(0).protocol_error) << "it was not told yet";
  EXPECT_EQ(sender.on_drained(), SenderSteps{.say_down = true});
  EXPECT_EQ(sender.on_drained(), SenderSteps{}) << "once is enough";
  EXPECT_EQ(sender.on_fenced(0), (SenderSteps{.apply_report = true, .reopen = true}));
  EXPECT_TRUE(sender.on_fenced(0).protocol_error) << "twice";
  ReceiverLane receiver;
  static_cast<void>(receiver.on_ready());
  EXPECT_TRUE(receiver.on_rebuild(1).protocol_error) << "nothing was fenced";
  EXPECT_TRUE(receiver.on_down(1).protocol_error);
  EXPECT_EQ(receiver.on_down(0), ReceiverSteps{.take_down = true});
  EXPECT_TRUE(receiver.on_down(0).protocol_error) << "twice";
  EXPECT_TRUE(receiver.on_rebuild(1).protocol_error) << "not reported yet";
  EXPECT_EQ(receiver.on_drained(), ReceiverSteps{.report = true});
  EXPECT_TRUE(receiver.on_rebuild(2).protocol_error) << "epochs come one by one";
}

TEST(Lane, ALaneThatWasAbandonedIsReplacedWhenItsDeviceIsThrough) {
  SenderLane sender;
  ReceiverLane receiver;
  static_cast<void>(sender.on_ready());
  static_cast<void>(receiver.on_ready());
  EXPECT_EQ(sender.on_unproven(), SenderSteps{}) << "nothing failed";
  static_cast<void>(sender.on_failed());
  EXPECT_EQ(sender.on_unproven(), SenderSteps{.abandon = true});
  EXPECT_EQ(sender.on_drained(), SenderSteps{.say_down = true});
  EXPECT_EQ(sender.on_unproven(), SenderSteps{}) << "the peer was told";
  EXPECT_FALSE(sender.proven());
  EXPECT_EQ(receiver.on_down(0), ReceiverSteps{.take_down = true});
  EXPECT_TRUE(receiver.peer_stopped());
  EXPECT_EQ(receiver.on_drained(), ReceiverSteps{.report = true});
  EXPECT_EQ(sender.on_fenced(0), SenderSteps{.apply_report = true});
  EXPECT_EQ(sender.on_proven(), SenderSteps{.reopen = true});
  sender.reopened();
  EXPECT_TRUE(sender.proven());
  EXPECT_EQ(sender.broken(), nullptr);
}

}  // namespace
}  // namespace nccl_ha::ha
