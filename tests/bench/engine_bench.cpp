// What the engine itself costs: messages between threads, requests, the flight recorder.  Prints
// one line per figure with its goal; ends with 1 when a goal is missed.
//
//   engine_bench PLUGIN
#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "plugin/nccl_abi.h"
#include "runtime/base/clock.h"
#include "runtime/base/config.h"
#include "runtime/base/cpu.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/worker.h"
#include "runtime/streams/uv_streams.h"
#include "runtime/telemetry/caller_recorders.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/recorder.h"
#include "tools/common/net_library_tables.h"

namespace nccl_ha {
namespace {

SteadyClock steady;
int missed = 0;

void report(const char* what, double value, const char* unit, double goal, bool at_most) {
  const bool good = at_most ? value <= goal : value >= goal;
  missed += good ? 0 : 1;
  std::printf("%-52s %12.1f %-8s goal %s %.0f  %s\n", what, value, unit,
              at_most ? "at most" : "at least", goal, good ? "ok" : "MISSED");
}

/// Two spinning threads on one processor would measure the scheduler.
const bool two_processors = usable_cpus().size() > 1;  // before anybody is pinned

void pin(int cpu) {
  if (two_processors) {
    static_cast<void>(pin_current_thread(cpu));
  }
}

double ns_since(Instant begin) { return static_cast<double>((steady.now() - begin).count()); }

struct Note {
  int64_t sent_ns;
};

void mailbox_latency() {
  // One message at a time, stamped by the sender; the receiver spins on its own processor.
  constexpr size_t rounds = 200000;
  Mailbox<Note> mailbox(64, 2);
  auto address = mailbox.open(64);
  std::atomic<size_t> received{0};
  std::vector<double> latencies;
  latencies.reserve(rounds);
  std::thread receiver([&] {
    pin(1);
    while (latencies.size() < rounds) {
      mailbox.drain(64, [&](const Note& note) {
        latencies.push_back(
            static_cast<double>(steady.now().time_since_epoch().count() - note.sent_ns));
      });
      received.store(latencies.size(), std::memory_order_release);
    }
  });
  pin(0);
  for (size_t i = 0; i < rounds; ++i) {
    while (received.load(std::memory_order_acquire) != i) {
    }
    static_cast<void>(address->try_send({steady.now().time_since_epoch().count()}));
  }
  receiver.join();
  std::nth_element(latencies.begin(), latencies.begin() + rounds / 2, latencies.end());
  report("message to another thread, median", latencies[rounds / 2], "ns", 300, true);
}

void mailbox_throughput() {
  constexpr uint64_t messages = 10'000'000;
  Mailbox<Note> mailbox(1024, 1);
  auto address = mailbox.open(1024);
  const Instant begin = steady.now();
  std::thread sender([&] {
    pin(1);
    for (uint64_t i = 0; i < messages; ++i) {
      while (!address->try_send({static_cast<int64_t>(i)})) {
      }
    }
  });
  uint64_t received = 0;
  while (received < messages) {
    received += mailbox.drain(64, [](const Note&) {});
  }
  sender.join();
  report("messages through one mailbox", static_cast<double>(messages) / ns_since(begin) * 1e3,
         "M/s", 5, false);
}

void recorder_cost(const char* what, Recorder recorder) {
  constexpr int64_t events = 10'000'000;
  const Instant now = steady.now();
  const Instant begin = steady.now();
  for (int64_t i = 0; i < events; ++i) {
    recorder.record(TraceEvent::cts_sent, 1, static_cast<uint64_t>(i), 2, now);
  }
  report(what, ns_since(begin) / events, "ns", 20, true);
}

/// With its time, which a caller has nobody to ask for.
void caller_event_cost(const std::shared_ptr<CounterFile>& file) {
  constexpr int64_t events = 10'000'000;
  CallerRecorders recorders({file, 0});
  const Instant begin = steady.now();
  for (int64_t i = 0; i < events; ++i) {
    if (CallerRecorder* mine = recorders.mine()) {
      mine->note_asked(1, 0, static_cast<uint64_t>(i), trace_request(TraceRequest::send, 8, 0));
    }
  }
  report("one event of a caller, with its time", ns_since(begin) / events, "ns", 20, true);
}

void counter_cost(const char* what, const CounterPlace& place) {
  const CounterBlock<PathCounters> block(place, what);
  constexpr int64_t messages = 10'000'000;
  const Instant begin = steady.now();
  for (int64_t i = 0; i < messages; ++i) {
    block->writes.add();
    block->bytes_sent.add(static_cast<uint64_t>(i));
  }
  report(what, ns_since(begin) / messages / 2, "ns", 2, true);
}

/// Memory that others read costs no more than any other.
void counters_in_a_file() {
  const auto file = CounterFile::create({Config{}.counters_dir, 64, 1, 4096, 1});
  const CounterBlock<WorkerCounters> worker({file, 0}, "worker");
  counter_cost("one counter, in plain memory", {});
  counter_cost("one counter, in the file", worker.place());
  recorder_cost("one flight-recorder event", Recorder(4096));
  recorder_cost("one flight-recorder event, in the file", Recorder(worker.place(), 4096));
  caller_event_cost(file);
}

void idle_turn() {
  Config config;
  auto streams = make_uv_streams();
  Worker worker({}, config, steady, std::move(*streams));
  constexpr int turns = 1'000'000;
  const Instant begin = steady.now();
  for (int i = 0; i < turns; ++i) {
    worker.turn();
  }
  report("idle turn of a worker without ports", ns_since(begin) / turns, "ns", 200, true);
}

#define REQUIRE(call)                                           \
  do {                                                          \
    if ((call) != abi::NcclResult::success) {                   \
      std::fprintf(stderr, "engine_bench: %s failed\n", #call); \
      std::exit(2);                                             \
    }                                                           \
  } while (false)

void request_cost(const char* plugin) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("HA_NCCL_USE_PROGRESS_THREAD", "1", 1);
  void* library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  const auto* net = library == nullptr
                        ? nullptr
                        : static_cast<const abi::NetV11*>(dlsym(library, "ncclNetPlugin_v11"));
  if (net == nullptr) {
    std::fprintf(stderr, "engine_bench: %s is no plugin: %s\n", plugin, dlerror());
    std::exit(2);
  }
  void* context = nullptr;
  abi::CommConfig config{-1};
  REQUIRE(net->init(&context, 1, &config, tools::plugin_logger(), nullptr));
  char handle[abi::handle_max_bytes];
  void* listening = nullptr;
  REQUIRE(net->listen(context, 0, handle, &listening));
  void* send = nullptr;
  void* recv = nullptr;
  while (send == nullptr || recv == nullptr) {
    if (send == nullptr) {
      REQUIRE(net->connect(context, 0, handle, &send, nullptr));
    }
    if (recv == nullptr) {
      REQUIRE(net->accept(listening, &recv, nullptr));
    }
    sched_yield();
  }
  std::vector<char> memory(4096);
  void* send_key = nullptr;
  void* recv_key = nullptr;
  REQUIRE(net->reg_mr(send, memory.data(), memory.size(), abi::ptr_host, &send_key));
  REQUIRE(net->reg_mr(recv, memory.data(), memory.size(), abi::ptr_host, &recv_key));

  std::vector<double> posting;
  std::vector<double> sending;
  std::vector<double> reading;  // what timing a single call adds to it
  auto finish = [&](void* request) {
    int done = 0;
    while (done == 0) {
      REQUIRE(net->test(request, &done, nullptr));
      if (done == 0) {
        sched_yield();
      }
    }
  };
  constexpr int batch = 16;
  for (int round = 0; round < 3000; ++round) {
    void* receives[batch] = {};
    void* sends[batch] = {};
    void* data = memory.data();
    size_t bytes = 8;
    int tag = 0;
    Instant begin = steady.now();
    reading.push_back(ns_since(begin));
    begin = steady.now();
    for (void*& request : receives) {
      REQUIRE(net->irecv(recv, 1, &data, &bytes, &tag, &recv_key, nullptr, &request));
    }
    posting.push_back(ns_since(begin) / batch);
    // As in a running job, the announcements are there before the sends: far more than their
    // flight time.  Only calls that post are timed.
    for (begin = steady.now(); ns_since(begin) < 100'000;) {
    }
    for (void*& request : sends) {
      double cost = 0;
      while (request == nullptr) {
        begin = steady.now();
        REQUIRE(net->isend(send, data, 8, 0, send_key, nullptr, &request));
        cost = ns_since(begin);
        if (request == nullptr) {
          sched_yield();
        }
      }
      sending.push_back(cost);
    }
    for (void* request : sends) {
      finish(request);
    }
    for (void* request : receives) {
      finish(request);
    }
  }
  std::nth_element(posting.begin(), posting.begin() + static_cast<ptrdiff_t>(posting.size() / 2),
                   posting.end());
  std::nth_element(sending.begin(), sending.begin() + static_cast<ptrdiff_t>(sending.size() / 2),
                   sending.end());
  report("irecv: enqueue a request, median", posting[posting.size() / 2], "ns", 100, true);
  std::nth_element(reading.begin(), reading.begin() + static_cast<ptrdiff_t>(reading.size() / 2),
                   reading.end());
  const double clock_ns = reading[reading.size() / 2];
  report("reading the clock around one call (not judged)", clock_ns, "ns", 1e9, true);
  report("isend: enqueue a request, median (without the clock)",
         sending[sending.size() / 2] - clock_ns, "ns", 100, true);

  void* data = memory.data();
  size_t bytes = 8;
  int tag = 0;
  void* open = nullptr;
  REQUIRE(net->irecv(recv, 1, &data, &bytes, &tag, &recv_key, nullptr, &open));
  constexpr int tests = 10'000'000;
  const Instant begin = steady.now();
  for (int i = 0; i < tests; ++i) {
    int done = 0;
    net->test(open, &done, nullptr);
  }
  report("test() of an unfinished request", ns_since(begin) / tests, "ns", 20, true);
  REQUIRE(net->close_send(send));
  REQUIRE(net->close_recv(recv));
  REQUIRE(net->close_listen(listening));
  REQUIRE(net->finalize(context));
  dlclose(library);
}

}  // namespace
}  // namespace nccl_ha

int main(int argc, char** argv) {
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  if (argc != 2) {
    std::fprintf(stderr, "usage: engine_bench PLUGIN\n");
    return 2;
  }
  nccl_ha::mailbox_latency();
  nccl_ha::mailbox_throughput();
  sched_setaffinity(0, sizeof all, &all);
  nccl_ha::counters_in_a_file();
  nccl_ha::idle_turn();
  nccl_ha::request_cost(argv[1]);
  return nccl_ha::missed == 0 ? 0 : 1;
}
