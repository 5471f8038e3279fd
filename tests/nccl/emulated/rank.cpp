// One rank of NCCL on a fake GPU; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who and where.
//
//   rank [--ops all|NAME,...] [--types float,...] [--counts 1,1000,...] [--OPTION VALUE]...
//
//   --comms N    N communicators, each with its stream, with an operation in flight at the same
//   time
//   --cycles N   N times: make communicators, use them, destroy them; NCCL unloads the plugin
//   between
//   --growth 1   with --cycles: no cycle after the second one may leave descriptors, mappings or
//   threads; 2: of mappings and threads the least of each half of the cycles counts
//   --seconds S  repeats the list of operations for S seconds
//   --die R@N    rank R kills itself in the midst of the operation after N; the others must see an
//                asynchronous error, abort and end: that is a success, and they say how long it
//                took
//   --rebuild 1  with --die: the others abort, and go on in smaller communicators of their own
//   --abort S    the last rank stays away from one all_reduce; the others abort it after S seconds
//   --split 1    uses a communicator split off the first one, which shares its resources, as well
//   --limit S    an operation that takes longer is a hang (60)
//   --slow S     names each operation that takes longer
//   --register 1 registers the operations' buffers with the communicator (NCCL_LOCAL_REGISTER=1)
//   --blocking 0 calls return before they are done
//   --cables I   NCCL's own sockets carry data over interfaces I only; ranks meet over those that
//                NCCL_SOCKET_IFNAME names
//   --graph 1    asks for a graph to capture operations in, which is refused, and goes on without
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "tests/nccl/emulated/held.h"
#include "tests/nccl/emulated/operation.h"
#include "tests/nccl/emulated/process.h"
#include "tests/nccl/emulated/waiting.h"

namespace nccl_ha::emulated {
namespace {

struct Options {
  std::vector<std::string> operations{"all_reduce"};
  std::vector<std::string> types{"float"};
  std::vector<size_t> counts{1, 1000, 65536, 1000003};
  int comms = 1;
  int cycles = 1;
  double seconds = 0;
  int dying = -1;
  size_t dies_after = 0;
  double abort_after = -1;
  double limit = 60;
  double slow = 0;
  bool rebuild = false;
  bool split = false;
  bool blocking = true;
  bool graph = false;
  bool growth = false;
  bool pooled = false;
  bool registers = false;
  std::string cables;
};

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> operations_in(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string& part : parts_of(text)) {
    if (part == "all") {
      names.insert(names.end(), all_operations().begin(), all_operations().end());
    } else {
      names.push_back(part);
    }
  }
  return names;
}

void set(Options& options, const std::string& name, const std::string& text) {
  if (name == "--ops") {
    options.operations = operations_in(text);
  } else if (name == "--types") {
    options.types = parts_of(text);
  } else if (name == "--counts") {
    options.counts.clear();
    for (const std::string& part : parts_of(text)) {
      options.counts.push_back(std::stoull(part));
    }
  } else if (name == "--comms") {
    options.comms = std::stoi(text);
  } else if (name == "--cycles") {
    options.cycles = std::stoi(text);
  } else if (name == "--seconds") {
    options.seconds = std::stod(text);
  } else if (name == "--die") {
    options.dying = std::stoi(text);
    options.dies_after = std::stoull(text.substr(text.find('@') + 1));
  } else if (name == "--rebuild") {
    options.rebuild = text == "1";
  } else if (name == "--abort") {
    options.abort_after = std::stod(text);
  } else if (name == "--split") {
    options.split = text == "1";
  } else if (name == "--limit") {
    options.limit = std::stod(text);
  } else if (name == "--slow") {
    options.slow = std::stod(text);
  } else if (name == "--blocking") {
    options.blocking = text == "1";
  } else if (name == "--graph") {
    options.graph = text == "1";
  } else if (name == "--register") {
    options.registers = text == "1";
  } else if (name == "--growth") {
    options.growth = text != "0";
    options.pooled = text == "2";
  } else if (name == "--cables") {
    options.cables = text;
  } else {
    die("no such option: " + name);
  }
}

class Rank {
 public:
  explicit Rank(Options options) : options_(std::move(options)) {}

  void run() {
    if (!options_.cables.empty()) {
      leave_data_to(options_.cables);
    }
    for (int cycle = 0; cycle < options_.cycles; ++cycle) {
      std::vector<Comm> comms = make_comms();
      if (options_.abort_after >= 0) {
        run_one(comms, {"all_reduce", "float", 1000, round_++});
        abort_alone(comms);
        continue;
      }
      if (options_.graph) {
        ask_for_a_graph(comms);
      }
      run_list(comms);
      destroy(comms);
      if (options_.growth) {
        look_for_growth(cycle + 1);
      }
    }
    say("%zu operations, every element right%s", durations_.size(), times().c_str());
  }

 private:
  Conduct conduct() {
    return {options_.limit, options_.blocking, options_.registers, [this] { maybe_die(); },
            [this](const std::vector<Comm>& comms, const Operation& operation, ncclResult_t error,
                   Seconds after) { failed(comms, operation, error, after); }};
  }

  /// NCCL has one setting for both.  It reads it for the meeting place once, with the first id, and
  /// for data when the first communicator is made.
  static void leave_data_to(const std::string& interfaces) {
    ncclUniqueId unused{};
    NHA_NEED(ncclGetUniqueId(&unused));
    setenv("NCCL_SOCKET_IFNAME", interfaces.c_str(), 1);
  }

  ncclUniqueId shared_id(Rendezvous::Others others = Rendezvous::Others::all_there) {
    ncclUniqueId id{};
    if (place().rank == 0) {
      NHA_NEED(ncclGetUniqueId(&id));
    }
    rendezvous_.share(id, others);
    return id;
  }

  std::vector<Comm> make_comms() {
    const auto start = Clock::now();
    std::vector<Comm> comms(static_cast<size_t>(options_.comms));
    for (Comm& comm : comms) {
      NHA_NEED(cudaStreamCreateWithFlags(&comm.stream, cudaStreamNonBlocking));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = options_.blocking ? 1 : 0;
      NHA_NEED(
          ncclCommInitRankConfig(&comm.comm, place().ranks, shared_id(), place().rank, &config));
      need(settled(comm.comm), "ncclCommInitRankConfig");
    }
    say("%d communicators in %.3f s", options_.comms, since(start).count());
    if (options_.split) {
      Comm part;
      NHA_NEED(cudaStreamCreateWithFlags(&part.stream, cudaStreamNonBlocking));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.splitShare = 1;
      NHA_NEED(ncclCommSplit(comms[0].comm, 0, place().rank, &part.comm, &config));
      comms.insert(comms.begin(), part);  // destroyed before the one it shares with
    }
    return comms;
  }

  /// A job that would rather have a graph must see that there is none, and not a broken one.
  static void ask_for_a_graph(const std::vector<Comm>& comms) {
    for (const Comm& comm : comms) {
      const cudaError_t status =
          cudaStreamBeginCapture(comm.stream, cudaStreamCaptureModeThreadLocal);
      if (status != cudaErrorNotSupported || cudaGetLastError() != cudaErrorNotSupported) {
        die("a capture was to be refused");
      }
    }
    say("graphs are refused; goes on without");
  }

  void destroy(const std::vector<Comm>& comms) {
    const auto start = Clock::now();
    for (const Comm& comm : comms) {
      NHA_NEED(ncclCommFinalize(comm.comm));
      need(settled(comm.comm), "ncclCommFinalize");
      NHA_NEED(ncclCommDestroy(comm.comm));
      NHA_NEED(cudaStreamDestroy(comm.stream));
    }
    say("destroyed in %.3f s", since(start).count());
  }

  /// What a process needs once is there after two cycles.
  void look_for_growth(int cycles) {
    Held now = held_by_process();
    if (cycles == 2) {
      held_early_ = now;
    } else if (options_.pooled && cycles > 2 && cycles <= options_.cycles / 2) {
      held_early_.allow_for_pool(now);
    }
    if (cycles > options_.cycles / 2 + 1 && options_.pooled) {
      now.allow_for_pool(held_late_);
    }
    held_late_ = now;
    if (cycles > 2 && cycles == options_.cycles) {
      // Threads of streams and of NCCL may still be on their way out.
      for (const auto start = Clock::now();
           now.more_than(held_early_) && since(start) < std::chrono::seconds(5);) {
        give_way(std::chrono::milliseconds(50));
        now = held_by_process();
        if (options_.pooled) {
          now.allow_for_pool(held_late_);
        }
      }
      say("after 2 cycles: %s; after %d: %s", held_early_.text().c_str(), cycles,
          now.text().c_str());
      if (now.more_than(held_early_)) {
        die("the process holds more after each cycle");
      }
    }
  }

  void maybe_die() {
    if (options_.dying == place().rank && durations_.size() == options_.dies_after) {
      say("kills itself in the midst of its operation %zu", durations_.size() + 1);
      std::fflush(nullptr);
      kill(getpid(), SIGKILL);
    }
  }

  void run_one(const std::vector<Comm>& comms, const Operation& operation) {
    const Seconds took = emulated::run(comms, operation, conduct());
    durations_.push_back(took.count());
    if (options_.slow > 0 && took.count() > options_.slow) {
      say("%s took %.3f s", operation.text().c_str(), took.count());
    }
  }

  void run_list(const std::vector<Comm>& comms) {
    const auto start = Clock::now();
    for (bool more = true; more;) {
      for (const std::string& name : options_.operations) {
        for (const std::string& type : options_.types) {
          for (const size_t count : options_.counts) {
            run_one(comms, {name, type, count, round_++});
          }
        }
      }
      more = since(start).count() < options_.seconds;
      if (options_.dying >= 0) {
        more = true;
      } else if (options_.seconds > 0) {
        rendezvous_.share(more);  // all ranks do as many rounds as rank 0
      }
    }
  }

  void abort(const std::vector<Comm>& comms) {
    const auto start = Clock::now();
    for (const Comm& comm : comms) {
      NHA_NEED(ncclCommAbort(comm.comm));
    }
    say("aborted in %.3f s", since(start).count());
    for (const Comm& comm : comms) {
      NHA_NEED(cudaStreamSynchronize(comm.stream));
    }
  }

  /// A communicator failed.  That is right only where a rank was to die.
  [[noreturn]] void failed(const std::vector<Comm>& comms, const Operation& operation,
                           ncclResult_t error, Seconds after) {
    say("%s: asynchronous error %.3f s after the call: %s", operation.text().c_str(), after.count(),
        ncclGetErrorString(error));
    abort(comms);
    if (options_.dying < 0) {
      die("nobody was to die");
    }
    if (options_.rebuild) {
      go_on_without_the_dead(comms);
    }
    say("kernels ended; %zu operations before", durations_.size());
    std::fflush(nullptr);
    _exit(0);
  }

  void go_on_without_the_dead(std::vector<Comm> comms) {
    const auto start = Clock::now();
    place().ranks -= 1;
    place().rank -= place().rank > options_.dying ? 1 : 0;
    options_.dying = -1;
    for (Comm& comm : comms) {
      const ncclUniqueId id = shared_id(Rendezvous::Others::some_dead);
      NHA_NEED(ncclCommInitRank(&comm.comm, place().ranks, id, place().rank));
    }
    say("new communicators after %.3f s", since(start).count());
    for (const char* name : {"all_reduce", "all_gather", "sendrecv", "alltoall"}) {
      for (const size_t count : {size_t{1}, size_t{1000}, size_t{65536}}) {
        run_one(comms, {name, "float", count, round_++});
      }
    }
    destroy(comms);
    say("now one of %d, 12 operations right; kernels ended", place().ranks);
  }

  void abort_alone(const std::vector<Comm>& comms) {
    float* buffer = nullptr;
    constexpr size_t count = 1 << 20;
    NHA_NEED(cudaMalloc(reinterpret_cast<void**>(&buffer), count * sizeof(float)));
    const Comm& first = comms.front();
    const bool takes_part = place().rank != place().ranks - 1;
    if (takes_part) {
      NHA_NEED(
          ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, first.comm, first.stream));
    }
    give_way(std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(options_.abort_after)));
    if (takes_part && cudaStreamQuery(first.stream) == cudaSuccess) {
      die("an all_reduce ended without the last rank");
    }
    abort({first});
    NHA_NEED(cudaFree(buffer));
    NHA_NEED(cudaStreamDestroy(first.stream));
    destroy({comms.begin() + 1, comms.end()});
  }

  std::string times() {
    if (durations_.empty()) {
      return "";
    }
    std::sort(durations_.begin(), durations_.end());
    const auto at = [this](double share) {
      return durations_[static_cast<size_t>(share * static_cast<double>(durations_.size() - 1))] *
             1e3;
    };
    char text[100];
    std::snprintf(text, sizeof text, ", ms: median %.1f, 99 %% %.1f, slowest %.1f", at(0.5),
                  at(0.99), at(1));
    return text;
  }

  Options options_;
  Rendezvous rendezvous_;
  std::vector<double> durations_;  ///< of the operations that were right
  int round_ = 0;
  Held held_early_;
  Held held_late_;
};

}  // namespace
}  // namespace nccl_ha::emulated

int main(int argc, char** argv) {
  using namespace nccl_ha::emulated;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc % 2 == 0) {
    die("options come with a value each");
  }
  Options options;
  for (int i = 1; i < argc; i += 2) {
    set(options, argv[i], argv[i + 1]);
  }
  int version = 0;
  NHA_NEED(ncclGetVersion(&version));
  if (version != NCCL_VERSION_CODE) {
    die("compiled with another NCCL's headers");
  }
  NHA_NEED(cudaSetDevice(0));
  Rank(std::move(options)).run();
  return 0;
}
