// Eight connections between two processes, each on one of two devices in turn, whose bytes are all
// compared, and compared again before their place is used once more: what goes on while a device
// dies, and the longest gap on each.
//
// usage: flows PLUGIN SECONDS [BYTES [merged|late]]     (as in nccl-ha perf; `ib`: out of LIBNCCL)
// merged: each connection is on a device that NCCL's makeVDevice has made of both.
// late: after half of the time another connection is asked for on the first device; the others are
// to go on whatever comes of it. NHA_NIC has no host= of its own: the sender is host 1, the
// receiver host 2.  The receiver prints one line of JSON, and so does a side where a call failed,
// of what was until then.  Exit status: 0 where every message has arrived as it was, 1 where a call
// failed or bytes were wrong, 3 where something stood still for patience_s.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/rig/peers/nccl_nets.h"
#include "tools/common/net_library.h"

namespace {

using nccl_ha::Instant;
using nccl_ha::abi::NcclResult;
using nccl_ha::tools::NetApi;
using nccl_ha::tools::NetHandle;
using nccl_ha::tools::NetLibrary;

constexpr size_t connections = 8;
constexpr size_t places = 8;  ///< of a connection, each with a message under way or at rest
constexpr double patience_s = 60;

double seconds(nccl_ha::Duration time) { return std::chrono::duration<double>(time).count(); }

/// What word `i` of a connection's message is.
uint64_t word_of(size_t connection, uint64_t message, size_t i) {
  uint64_t word = (connection << 56U) ^ (message << 24U) ^ i;
  word *= 0x9E37'79B9'7F4A'7C15;
  return word ^ (word >> 29U);
}

[[noreturn]] void end(int status, const std::string& why) {
  std::fprintf(stderr, "flows: %s\n", why.c_str());
  std::fflush(nullptr);
  _exit(status);
}

bool transfer(int end, void* data, size_t bytes, bool in) {
  for (size_t have = 0; have < bytes;) {
    char* at = static_cast<char*>(data) + have;
    const ssize_t part = in ? read(end, at, bytes - have) : write(end, at, bytes - have);
    if (part <= 0) {
      return false;
    }
    have += static_cast<size_t>(part);
  }
  return true;
}

/// One connection at one side.  Messages take places in turn.
struct Flow {
  void* comm = nullptr;
  void* key = nullptr;
  std::vector<uint64_t> memory;
  std::array<void*, places> requests{};
  std::array<uint64_t, places> rests{};  ///< one more than the message whose bytes lie there
  uint64_t posted = 0;
  uint64_t done = 0;
  uint64_t last = UINT64_MAX;  ///< messages that there will be
  Instant moved{};
  double gap_s = 0;
};

/// The sender's last messages of each connection have one word, one for each place.
class Side {
 public:
  /// `merged`: the device of all; less than 0: two take turns.
  Side(NetApi& api, bool sends, int in, int out, size_t bytes, int merged, bool late)
      : api_(api),
        sends_(sends),
        in_(in),
        out_(out),
        words_(bytes / sizeof(uint64_t)),
        merged_(merged),
        late_(late) {}

  void run(double time_s) {
    connect_all();
    char byte = 0;
    transfer(out_, &byte, 1, false);
    if (!transfer(in_, &byte, 1, true)) {
      end(1, "the other side has ended");
    }
    const Instant begin = clock_.now();
    for (Flow& flow : flows_) {
      flow.moved = begin;
    }
    for (size_t open = connections; open != 0;) {
      const Instant now = clock_.now();
      const bool over = sends_ && !late_ && seconds(now - begin) > time_s;
      if (late_ && 2 * seconds(now - begin) > time_s) {
        ask_for_another();
      }
      open = 0;
      for (size_t i = 0; i < connections; ++i) {
        move(i, over);
        open += flows_[i].done < flows_[i].last ? 1 : 0;
      }
      sched_yield();
    }
    check_rest();
    // Whoever is through first keeps its connections until the other one is.
    transfer(out_, &byte, 1, false);
    transfer(in_, &byte, 1, true);
  }

  void print() const {
    std::printf("{\"bytes\": %zu, \"late\": \"%s\", \"flows\": [", words_ * sizeof(uint64_t),
                asked_);
    for (size_t i = 0; i < connections; ++i) {
      std::printf("%s{\"device\": %d, \"messages\": %llu, \"gap_ms\": %.2f}", i == 0 ? "" : ", ",
                  device_of(i), static_cast<unsigned long long>(flows_[i].done),
                  1000 * flows_[i].gap_s);
    }
    std::printf("]}\n");
  }

 private:
  int device_of(size_t connection) const {
    return merged_ < 0 ? static_cast<int>(connection % 2) : merged_;
  }

  /// To listen at the receiver, whose handle the sender gets.
  void* listen(int device, NetHandle& handle) {
    void* listening = nullptr;
    if (!sends_) {
      auto made = api_.listen(device, handle);
      if (!made) {
        end(1, made.error().message());
      }
      listening = *made;
    }
    if (!transfer(sends_ ? in_ : out_, handle.data(), handle.size(), sends_)) {
      end(1, "the other side has ended");
    }
    return listening;
  }

  void ask_for_another() {
    auto made = sends_ ? api_.connect(0, late_handle_) : api_.accept(late_listening_);
    late_ = made && *made == nullptr;
    asked_ = !made ? "failed" : late_ ? "open" : "up";
  }

  void connect_all() {
    std::array<NetHandle, connections> handles{};
    std::array<void*, connections> listening{};
    for (size_t i = 0; i < connections; ++i) {
      listening[i] = listen(device_of(i), handles[i]);
    }
    late_listening_ = listen(0, late_handle_);
    const Instant begin = clock_.now();
    for (size_t open = connections; open != 0; sched_yield()) {
      for (size_t i = 0; i < connections; ++i) {
        if (flows_[i].comm != nullptr) {
          continue;
        }
        auto made = sends_ ? api_.connect(device_of(i), handles[i]) : api_.accept(listening[i]);
        if (!made) {
          end(1, made.error().message());
        }
        flows_[i].comm = *made;
        open -= *made != nullptr ? 1 : 0;
      }
      if (seconds(clock_.now() - begin) > patience_s) {
        end(3, "not all connections have come up");
      }
    }
    for (Flow& flow : flows_) {
      flow.memory.resize(places * words_);
      auto key = api_.register_memory(flow.comm, flow.memory.data(),
                                      flow.memory.size() * sizeof(uint64_t));
      if (!key) {
        end(1, key.error().message());
      }
      flow.key = *key;
    }
  }

  void move(size_t i, bool over) {
    Flow& flow = flows_[i];
    const Instant now = clock_.now();
    bool moved = true;
    for (size_t step = 0; step < places && moved; ++step) {  // then it is the others' turn
      moved = flow.done < flow.posted && complete(i);
      if (moved) {
        flow.gap_s = std::max(flow.gap_s, seconds(now - flow.moved));
        flow.moved = now;
      }
      moved |= flow.posted < flow.last && flow.posted - flow.done < places && post(i, over);
    }
    if (flow.done < flow.last && seconds(now - flow.moved) > patience_s) {
      end(3, "connection " + std::to_string(i) + " stands still");
    }
  }

  /// The connection failed.
  [[noreturn]] void give_up(size_t i, const std::string& why) {
    Flow& flow = flows_[i];
    flow.gap_s = std::max(flow.gap_s, seconds(clock_.now() - flow.moved));
    print();
    end(1, why);
  }

  bool post(size_t i, bool over) {
    Flow& flow = flows_[i];
    const size_t place = flow.posted % places;
    uint64_t* data = &flow.memory[place * words_];
    size_t bytes = words_ * sizeof(uint64_t);
    if (!sends_) {
      check(i, place);
    } else {
      if (over && flow.last == UINT64_MAX) {
        flow.last = flow.posted + places;
      }
      bytes = flow.last == UINT64_MAX ? bytes : sizeof(uint64_t);
      for (size_t word = 0; word < bytes / sizeof(uint64_t); ++word) {
        data[word] = word_of(i, flow.posted, word);
      }
    }
    void* at = data;
    const int tag = 0;
    void** request = &flow.requests[place];
    const NcclResult result = sends_
                                  ? api_.isend(flow.comm, at, bytes, tag, flow.key, request)
                                  : api_.irecv(flow.comm, 1, &at, &bytes, &tag, &flow.key, request);
    if (result != NcclResult::success) {
      give_up(i, api_.call_failed(sends_ ? "isend" : "irecv", result).message());
    }
    if (*request == nullptr) {
      return false;
    }
    flow.rests[place] = 0;
    ++flow.posted;
    return true;
  }

  bool complete(size_t i) {
    Flow& flow = flows_[i];
    const size_t place = flow.done % places;
    int done = 0;
    std::array<int, 8> sizes{};
    const NcclResult result = api_.test(flow.requests[place], &done, sizes.data());
    if (result != NcclResult::success) {
      give_up(i, api_.call_failed("test", result).message());
    }
    if (done == 0) {
      return false;
    }
    if (!sends_) {
      const bool small = sizes[0] == sizeof(uint64_t);
      if (!small && static_cast<size_t>(sizes[0]) != words_ * sizeof(uint64_t)) {
        end(1, "a message of " + std::to_string(sizes[0]) + " bytes came");
      }
      if (small && flow.last == UINT64_MAX) {
        flow.last = flow.done + places;
      }
      flow.rests[place] = flow.done + 1;
      check(i, place);
    }
    ++flow.done;
    return true;
  }

  /// What rests there is what has come.
  void check(size_t i, size_t place) {
    const Flow& flow = flows_[i];
    if (flow.rests[place] == 0) {
      return;
    }
    const uint64_t message = flow.rests[place] - 1;
    const bool small = flow.last != UINT64_MAX && message + places >= flow.last;
    for (size_t word = 0; word < (small ? 1 : words_); ++word) {
      if (flow.memory[place * words_ + word] != word_of(i, message, word)) {
        end(1, "WRONG BYTES: connection " + std::to_string(i) + ", message " +
                   std::to_string(message) + ", word " + std::to_string(word));
      }
    }
  }

  void check_rest() {
    for (size_t i = 0; !sends_ && i < connections; ++i) {
      for (size_t place = 0; place < places; ++place) {
        check(i, place);
      }
    }
  }

  NetApi& api_;
  bool sends_;
  int in_;
  int out_;
  size_t words_;
  int merged_;
  bool late_;  ///< another connection is still to be asked for
  const char* asked_ = "never";
  NetHandle late_handle_{};
  void* late_listening_ = nullptr;
  nccl_ha::SteadyClock clock_;
  std::array<Flow, connections> flows_;
};

[[noreturn]] void run_side(const char* plugin, double time_s, size_t bytes, const std::string& how,
                           bool sends, int in, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* nic = std::getenv("NHA_NIC");
  const std::string mine = std::string(nic == nullptr ? "" : nic) + (sends ? ",host=1" : ",host=2");
  setenv("NHA_NIC", mine.c_str(), 1);
  auto library = NetLibrary::open(plugin, 0);
  if (!library) {
    end(1, library.error().message());
  }
  if (auto begun = (*library)->api().init(1); !begun) {
    end(1, begun.error().message());
  }
  const auto devices = (*library)->api().devices();
  if (!devices || *devices < 2) {
    end(1, devices ? "there are no two devices" : devices.error().message());
  }
  const auto one = how == "merged" ? (*library)->api().merge({0, 1}) : nccl_ha::Result<int>(-1);
  if (!one) {
    end(1, one.error().message());
  }
  Side side((*library)->api(), sends, in, out, bytes, *one, how == "late");
  side.run(time_s);
  if (!sends) {
    side.print();
  }
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  nccl_ha::tools::know_nets(&nccl_ha::rig::nccl_nets);
  if (argc < 3) {
    std::fprintf(stderr, "usage: flows PLUGIN SECONDS [BYTES [merged|late]]\n");
    return 2;
  }
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  const size_t bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) & ~size_t{7} : 262144;
  const std::string how = argc > 4 ? argv[4] : "";
  int there[2];
  int back[2];
  if (bytes < 16 || pipe(there) != 0 || pipe(back) != 0) {
    return 2;
  }
  int status = 0;
  std::array<pid_t, 2> pids{};
  for (const bool sends : {false, true}) {
    pids[sends ? 1 : 0] = fork();
    if (pids[sends ? 1 : 0] == 0) {
      run_side(argv[1], std::strtod(argv[2], nullptr), bytes, how, sends,
               sends ? there[0] : back[0], sends ? back[1] : there[1]);
    }
  }
  for (int left = 2; left != 0; --left) {
    int ending = 0;
    const pid_t ended = wait(&ending);
    const int code = WIFEXITED(ending) ? WEXITSTATUS(ending) : 1;
    if (code != 0 && status == 0) {
      status = code;
      kill(pids[ended == pids[0] ? 1 : 0], SIGKILL);
    }
  }
  return status;
}
