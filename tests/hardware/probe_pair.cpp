// What two hosts measure together: the order of data, the end of queue pairs under load, a link
// that goes down.
#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/hardware/probe.h"

namespace nccl_ha::hardware {
namespace {

constexpr uint32_t large = 1U << 20;
constexpr uint32_t stream_bytes = 1U << 16;
constexpr size_t line = 64;

/// The content of message `round`; no two in a row have a byte in common.
char content(int round) { return static_cast<char>(1 + round % 250); }
/// Of all kinds, large ones seldom.
uint32_t size_of(int round) {
  static constexpr std::array<uint32_t, 4> small{128, 4096, 8192 + 64, 65536};
  return round % 50 == 49  ? large
         : round % 10 == 9 ? large / 4
                           : small[static_cast<size_t>(round) % small.size()];
}

size_t wrong_bytes(const char* memory, size_t bytes, char wanted) {
  return bytes - static_cast<size_t>(std::count(memory, memory + bytes, wanted));
}

void expect_good(ibv_wc_status status) {
  if (status != IBV_WC_SUCCESS) {
    give_up(std::string("a request failed: ") + ibv_wc_status_str(status));
  }
}

void drain(End& end) {
  ibv_wc wc{};
  while (end.poll(&wc)) {
    expect_good(wc.status);
  }
}

/// How data and the immediate behind it are sent.
enum class Way { with_data, write_then_immediate, memory_only };

/// Sends all messages; the peer says when it has looked at one.
void send_in_order(End& end, Wire& wire, Way way, int messages) {
  for (int round = 0; round < messages; ++round) {
    const uint32_t bytes = size_of(round);
    std::memset(end.memory, content(round), bytes);
    int error = 0;
    if (way == Way::with_data) {
      error = end.write(1, 0, bytes, true, static_cast<uint32_t>(round));
    } else {
      error = end.write(1, 0, bytes, false, 0, 0, way == Way::memory_only);
      if (way == Way::write_then_immediate && error == 0) {
        error = end.write(1, 0, 0, true, static_cast<uint32_t>(round));
      }
    }
    require(error == 0, "ibv_post_send");
    wire.hear();
    drain(end);
  }
}

struct Seen {
  uint64_t messages_incomplete = 0;  ///< when their completion was polled
  uint64_t bytes_missing = 0;
  uint64_t last_byte_early = 0;   ///< it was there before all others
  uint64_t torn_within_line = 0;  ///< a line of 64 bytes was old in part
};

/// The last byte of the message is there: what is not?
void look_behind_last_byte(const End& end, uint32_t bytes, char wanted, Seen& seen) {
  const auto* at = const_cast<const volatile char*>(end.memory);
  const auto start = Clock::now();
  while (at[bytes - 1] != wanted) {
    if (us_since(start) > 10e6) {
      give_up("a message did not arrive within 10 s");
    }
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  // Downwards: what is old near the end is what came out of order.
  size_t old = 0;
  bool torn = false;
  for (size_t first = 0; first < bytes; first += line) {
    const size_t count = std::min<size_t>(line, bytes - first);
    const size_t missing = wrong_bytes(end.memory + first, count, wanted);
    old += missing;
    torn = torn || (missing != 0 && missing != count);
  }
  seen.last_byte_early += old != 0 ? 1 : 0;
  seen.torn_within_line += torn ? 1 : 0;
  while (wrong_bytes(end.memory, bytes, wanted) != 0) {
    require(us_since(start) < 10e6, "a message is incomplete after 10 s");
  }
}

void receive_in_order(End& end, Wire& wire, Way way, int messages, Seen& seen) {
  for (int round = 0; round < messages; ++round) {
    const uint32_t bytes = size_of(round);
    if (way == Way::memory_only) {
      look_behind_last_byte(end, bytes, content(round), seen);
    } else {
      ibv_wc wc{};
      require(end.complete(&wc, 10), "no completion within 10 s");
      expect_good(wc.status);
      require(ntohl(wc.imm_data) == static_cast<uint32_t>(round), "immediates are in order");
      const size_t missing = wrong_bytes(end.memory, bytes, content(round));
      seen.messages_incomplete += missing != 0 ? 1 : 0;
      seen.bytes_missing += missing;
      end.post_receive(0);
    }
    wire.say('n');
  }
}

/// One queue pair that is ended while data arrives.
struct EndTimes {
  Times to_error, flushed, destroy;
  uint64_t late_after_flush = 0;    ///< the memory changed when all receives had come back
  uint64_t late_after_destroy = 0;  ///< and when the queue pair was gone
  uint64_t without_flush = 0;
};

uint64_t fingerprint(const End& end) {
  uint64_t sum = 14695981039346656037U;
  for (size_t at = 0; at < stream_bytes; at += line) {
    uint64_t word = 0;
    std::memcpy(&word, end.memory + at, sizeof(word));
    sum = (sum ^ word) * 1099511628211U;
  }
  return sum;
}

bool changes(const End& end, double limit_us) {
  const uint64_t before = fingerprint(end);
  for (const auto start = Clock::now(); us_since(start) < limit_us;) {
    if (fingerprint(end) != before) {
      return true;
    }
  }
  return false;
}

/// Takes back receives; how many.
uint32_t await_flushed(End& end, uint32_t wanted, double limit_s) {
  uint32_t count = 0;
  ibv_wc wc{};
  for (const auto start = Clock::now(); count < wanted && us_since(start) < limit_s * 1e6;) {
    count += end.poll(&wc) ? 1 : 0;
  }
  return count;
}

void end_as_receiver(End& end, EndTimes& times, bool by_error) {
  const bool flows = changes(end, 5e6);
  require(flows, "data arrives");
  if (by_error) {
    times.to_error.take("ibv_modify_qp to ERR", [&] { return end.to_error(); });
    const auto start = Clock::now();
    if (await_flushed(end, End::depth, 2) == End::depth) {
      times.flushed.add(us_since(start));
      times.late_after_flush += changes(end, 2000) ? 1 : 0;
    } else {
      ++times.without_flush;
    }
  }
  times.destroy.take("ibv_destroy_qp", [&] { return end.destroy(); });
  times.late_after_destroy += changes(end, 5000) ? 1 : 0;
}

/// Posts without end until the peer's queue pair is gone, or `stop`; the first status that is not
/// success, and when the last success was.
struct Stream {
  ibv_wc_status status = IBV_WC_SUCCESS;
  Clock::time_point last_success;
  Clock::time_point failed;
  uint32_t open = 0;
};

template <class Stop>
Stream stream(End& end, Stop&& stop) {
  Stream out;
  out.last_success = Clock::now();
  uint64_t number = 0;
  ibv_wc wc{};
  while (out.status == IBV_WC_SUCCESS && !stop()) {
    if (out.open < End::depth) {
      const size_t from = number % 16 * stream_bytes;
      require(end.write(number++, from, stream_bytes, false, 0) == 0, "ibv_post_send");
      ++out.open;
    }
    while (end.poll(&wc)) {
      --out.open;
      out.status = wc.status;
      if (wc.status != IBV_WC_SUCCESS) {
        out.failed = Clock::now();
        break;
      }
      out.last_success = Clock::now();
    }
  }
  return out;
}

void fill_source(End& end) {
  for (size_t at = 0; at < 16; ++at) {
    std::memset(end.memory + at * stream_bytes, static_cast<int>(at + 1), stream_bytes);
  }
}

std::string end_once(Device& device, Wire& wire, const Options& options, bool by_error) {
  EndTimes times;
  Times noticed;
  std::map<std::string, uint64_t> statuses;
  for (int round = 0; round < options.rounds; ++round) {
    Pair pair(device, wire, options, size_t{16} * stream_bytes);
    if (wire.first()) {
      fill_source(pair.end);
      const auto start = Clock::now();
      const Stream sent = stream(pair.end, [&] { return us_since(start) > 30e6; });
      ++statuses[ibv_wc_status_str(sent.status)];
      noticed.add(
          std::chrono::duration<double, std::micro>(sent.failed - sent.last_success).count());
      const auto flush = Clock::now();
      times.to_error.take("ibv_modify_qp to ERR", [&] { return pair.end.to_error(); });
      if (await_flushed(pair.end, sent.open + End::depth, 2) == sent.open + End::depth) {
        times.flushed.add(us_since(flush));
      } else {
        ++times.without_flush;
      }
      times.destroy.take("ibv_destroy_qp", [&] { return pair.end.destroy(); });
    } else {
      end_as_receiver(pair.end, times, by_error);
    }
    wire.exchange({});
  }
  Object out;
  out.add("modify_qp ERR", times.to_error.json())
      .add("until all work came back", times.flushed.json())
      .add("destroy_qp", times.destroy.json())
      .add("work did not all come back", times.without_flush);
  if (wire.first()) {
    Object said;
    for (const auto& [status, count] : statuses) {
      said.add(status, count);
    }
    out.add("first failure after the last success", noticed.json()).add("status", said.json());
  } else {
    out.add("memory changed after all work came back", times.late_after_flush)
        .add("memory changed after destroy_qp", times.late_after_destroy);
  }
  return out.json();
}

std::string order_once(Device& device, Wire& wire, const Options& options, Way way,
                       unsigned access) {
  Pair pair(device, wire, options, large, access);
  const int messages = 10 * options.repeat;
  Seen seen;
  if (wire.first()) {
    send_in_order(pair.end, wire, way, messages);
  } else {
    receive_in_order(pair.end, wire, way, messages, seen);
  }
  wire.exchange({});
  Object out;
  out.add("messages", messages);
  if (!wire.first() && way == Way::memory_only) {
    out.add("last byte before others", seen.last_byte_early)
        .add("line of 64 bytes torn", seen.torn_within_line);
  } else if (!wire.first()) {
    out.add("incomplete at their completion", seen.messages_incomplete)
        .add("bytes missing then", seen.bytes_missing);
  }
  return out.json();
}

}  // namespace

std::string measure_order(Device& device, Wire& wire, const Options& options) {
  Object out;
  for (const bool relaxed : {false, true}) {
    const unsigned access = relaxed ? static_cast<unsigned>(IBV_ACCESS_RELAXED_ORDERING) : 0;
    const std::string how = relaxed ? "relaxed ordering: " : "";
    out.add(how + "immediate with the data",
            order_once(device, wire, options, Way::with_data, access));
    out.add(how + "immediate behind the data",
            order_once(device, wire, options, Way::write_then_immediate, access));
    out.add(how + "memory only", order_once(device, wire, options, Way::memory_only, access));
  }
  return out.json();
}

std::string measure_end_under_load(Device& device, Wire& wire, const Options& options) {
  const std::string by_error = end_once(device, wire, options, true);
  return Object()
      .add("to ERR, then destroyed", by_error)
      .add("destroyed at once", end_once(device, wire, options, false))
      .json();
}

/// While data leaves this host, or arrives.
std::string measure_verbs_under_load(Device& device, Wire& wire, const Options& options) {
  Pair pair(device, wire, options, size_t{16} * stream_bytes);
  std::map<std::string, Times> times;
  std::atomic<bool> stop{false};
  std::thread sender;
  if (wire.first()) {
    fill_source(pair.end);
    sender = std::thread([&] {
      const Stream sent = stream(pair.end, [&] { return stop.load(); });
      expect_good(sent.status);
    });
  }
  wire.exchange({});  // it flows
  time_verbs(device, options, std::max(1, options.repeat / 4), times);
  wire.exchange({});  // both have measured
  stop = true;
  if (sender.joinable()) {
    sender.join();
  }
  wire.exchange({});
  return times_json(times);
}

namespace {

/// Seconds since a start, of each event of the device.
class Events {
 public:
  explicit Events(Device& device, Clock::time_point start) : device_(device), start_(start) {}
  void look() {
    pollfd ready{device_.context->async_fd, POLLIN, 0};
    ibv_async_event event{};
    while (poll(&ready, 1, 0) == 1 && ibv_get_async_event(device_.context, &event) == 0) {
      said_ +=
          (said_.empty() ? "" : ", ") + Object()
                                            .add_text("event", ibv_event_type_str(event.event_type))
                                            .add("ms", us_since(start_) / 1000)
                                            .json();
      ibv_ack_async_event(&event);
    }
  }
  std::string json() const { return "[" + said_ + "]"; }

 private:
  Device& device_;
  Clock::time_point start_;
  std::string said_;
};

/// Control verbs of a device whose port may be down.
std::string verbs_now(End& end, const Options& options) {
  std::map<std::string, Times> times;
  Device& device = end.device;
  ibv_port_attr port{};
  times["query_port"].take("ibv_query_port", [&] {
    return ibv_query_port(device.context, static_cast<uint8_t>(options.port), &port);
  });
  times["modify_qp ERR"].take("ibv_modify_qp to ERR", [&] { return end.to_error(); });
  times["destroy_qp"].take("ibv_destroy_qp", [&] { return end.destroy(); });
  return Object()
      .add("port active", port.state == IBV_PORT_ACTIVE ? 1 : 0)
      .add("verbs", times_json(times))
      .json();
}

/// Whether a device reads its own memory, as a flush of GPU memory does, with its port down.
std::string read_own_memory(Device& device, End& loop) {
  const auto start = Clock::now();
  ibv_wc wc{};
  const bool came = loop.read_back() == 0 && loop.complete(&wc, 2);
  static_cast<void>(device);
  return Object()
      .add_text("status", came ? ibv_wc_status_str(wc.status) : "no completion within 2 s")
      .add("us", us_since(start))
      .json();
}

}  // namespace

std::string measure_link_down(Device& device, Wire& wire, const Options& options) {
  constexpr double limit_us = 60e6;
  End loop(device, 4096);
  loop.connect(loop.address(), options);
  Pair pair(device, wire, options, size_t{16} * stream_bytes);
  const auto start = Clock::now();
  Events events(device, start);
  std::printf("streaming\n");
  std::fflush(stdout);
  Object out;
  if (wire.first()) {
    fill_source(pair.end);
    const Stream sent = stream(pair.end, [&] {
      events.look();
      return us_since(start) > limit_us;
    });
    out.add_text("status", ibv_wc_status_str(sent.status))
        .add("ms from last success to failure",
             std::chrono::duration<double, std::milli>(sent.failed - sent.last_success).count());
  } else {
    while (us_since(start) < limit_us && wire.heard() != 'e') {
      events.look();
    }
  }
  out.add("read of own memory", read_own_memory(device, loop))
      .add("with the link as it is", verbs_now(pair.end, options));
  const auto end = Clock::now();
  while (us_since(end) < 1e6) {
    events.look();  // those that come later
  }
  if (wire.first()) {
    wire.say('e');
  }
  return out.add("events", events.json()).json();
}

}  // namespace nccl_ha::hardware
