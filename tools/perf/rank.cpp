#include "tools/perf/rank.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/common/net_library.h"
#include "tools/perf/latency.h"
#include "tools/perf/links.h"
#include "tools/perf/pace.h"
#include "tools/perf/plan.h"
#include "tools/perf/transfer.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// Longest time without a progress message.
constexpr auto progress_interval = std::chrono::milliseconds(200);

/// What one rank measured for one size.
struct Measured {
  double time_s = 0;  ///< mean per iteration
  double cpu_s = 0;   ///< mean per iteration, all threads
  CheckResult check;
  std::vector<double> samples_us;  ///< of each iteration; for latency half a round trip
  uint64_t iterations = 0;
  std::vector<FaultReport> faults;
};

class Rank {
 public:
  explicit Rank(const RankSetup& setup) : setup_(setup), o_(setup.options) {}

  Result<void> run() {
    for (const auto& [name, value] : setup_.plugin.environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    auto world = World::join(setup_.world);
    if (!world) {
      return world.error();
    }
    world_ = std::move(*world);
    for (auto step : {&Rank::load, &Rank::connect, &Rank::announce, &Rank::serve, &Rank::close}) {
      if (auto done = (this->*step)(); !done) {
        return done;
      }
    }
    return {};
  }

  /// Reports a failure to the parent and to the other ranks.
  void report(const Error& error) {
    // Errc::closed means that the reason lies with another rank, which reports it itself.
    const bool secondary = error.code == Errc::closed;
    std::string text = error.message();
    if (!activity_.empty()) {
      text += fmt::format(" [while {}]", activity_);
    }
    if (world_ && !secondary) {
      world_->announce_failure(fmt::format("rank {} failed: {}", setup_.world.rank, text));
    }
    send_to_parent({{"type", "failure"}, {"text", text}, {"secondary", secondary}});
  }

 private:
  Result<void> load() {
    activity_ = fmt::format("loading {}", setup_.plugin.name);
    auto library = NetLibrary::open(setup_.plugin.name, setup_.plugin.abi);
    if (!library) {
      return library.error();
    }
    library_ = std::move(*library);
    NetApi& api = library_->api();
    const auto comm_id = world_->draw();
    const auto begun = comm_id ? api.init(*comm_id) : Result<void>(comm_id.error());
    if (!begun) {
      return begun;
    }
    auto count = api.devices();
    if (!count) {
      return count.error();
    }
    if (*count <= 0) {
      return fail(Errc::system, fmt::format("{} reports no device{}", api.name(),
                                            hint_of(last_plugin_warning())));
    }
    if (auto found = find_device(*count); !found) {
      return found;
    }
    if (static_cast<int>(o_.group) > device_.max_recvs) {
      return fail(Errc::invalid_argument,
                  fmt::format("--group {}: {} receives at most {} messages in one request",
                              o_.group, api.name(), device_.max_recvs));
    }
    if (o_.message_bytes > device_.max_message_bytes) {
      return fail(Errc::invalid_argument,
                  fmt::format("--step {}: {} takes at most {} bytes", o_.message_bytes, api.name(),
                              device_.max_message_bytes));
    }
    return {};
  }

  /// By number or name; a name that is a number is one.
  Result<void> find_device(int count) {
    std::string names;
    for (int number = 0; number < count; ++number) {
      auto device = library_->api().properties(number);
      if (!device) {
        return device.error();
      }
      if (o_.device == std::to_string(number) || o_.device == device->name) {
        device_ = *device;
        device_number_ = number;
        return {};
      }
      names += fmt::format("{}{} ({})", number == 0 ? "" : ", ", number, device->name);
    }
    return fail(Errc::invalid_argument, fmt::format("--device {} does not exist: {} has {}",
                                                    o_.device, library_->api().name(), names));
  }

  static std::string hint_of(const std::string& warning) {
    return warning.empty() ? "" : ": " + warning;
  }

  PlanOptions plan_options() const {
    PlanOptions p;
    p.op = o_.op;
    p.type = o_.type;
    p.rank = setup_.world.rank;
    p.ranks = setup_.world.size;
    p.root = o_.root;
    p.channels = o_.op == OpKind::latency ? 1 : o_.conns;
    p.depth = o_.depth;
    p.message_bytes = o_.message_bytes;
    p.bidirectional = o_.bidirectional;
    p.group = o_.group;
    p.reuse = o_.reuse;
    return p;
  }

  Result<void> connect() {
    activity_ = "connecting";
    const PlanOptions p = plan_options();
    std::array<size_t, buffers> sizes{};
    const Geometry largest = geometry(o_.op, o_.type, p.ranks, o_.max_bytes);
    if (o_.op == OpKind::latency) {
      sizes[0] = sizes[1] = latency_buffer_bytes(o_.max_bytes, o_.depth);
    } else {
      sizes = buffer_sizes(p, largest);
    }
    auto memory = BufferSet::allocate(sizes);
    if (!memory) {
      return memory.error();
    }
    memory_ = std::move(*memory);
    auto links_up =
        LinkSet::open(*world_, library_->api(), device_number_,
                      links(o_.op, p.ranks, o_.bidirectional), p.channels, *memory_, o_.spin);
    if (!links_up) {
      return links_up.error();
    }
    links_ = std::move(*links_up);
    return {};
  }

  Result<void> announce() {
    activity_ = "waiting for orders";
    char host[256] = "?";
    gethostname(host, sizeof(host) - 1);
    auto hosts = world_->all_gather(host);
    if (!hosts) {
      return hosts.error();
    }
    if (setup_.world.rank == 0) {
      send_to_parent({{"type", "ready"},
                      {"plugin", library_->api().name()},
                      {"file", library_->file()},
                      {"abi", library_->api().version()},
                      {"device", device_.name},
                      {"speed_mbps", device_.speed_mbps},
                      {"hosts", *hosts}});
    }
    return {};
  }

  Result<void> serve() {
    while (true) {
      auto order = next_order();
      if (!order) {
        return order.error();
      }
      if ((*order)["type"] == "stop") {
        return {};
      }
      const uint64_t bytes = (*order)["bytes"];
      if (auto done = run_size(bytes); !done) {
        return done;
      }
      activity_ = "waiting for orders";
    }
  }

  Result<json> next_order() {
    std::string text;
    if (setup_.world.rank == 0) {
      if (auto ready = world_->wait_readable(setup_.channel_fd); !ready) {
        return ready.error();
      }
      char packet[4096];
      const ssize_t got = recv(setup_.channel_fd, packet, sizeof(packet), 0);
      if (got <= 0) {
        return fail(Errc::internal, "the parent process is gone");
      }
      text.assign(packet, static_cast<size_t>(got));
    }
    auto sent = world_->broadcast(text);
    if (!sent) {
      return sent.error();
    }
    json order = json::parse(*sent, nullptr, false);
    if (order.is_discarded() || !order.contains("type")) {
      return fail(Errc::internal, "an order could not be read");
    }
    return order;
  }

  Result<void> run_size(uint64_t bytes) {
    activity_ = fmt::format("running {} of {} bytes", to_text(o_.op), bytes);
    const Geometry size = geometry(o_.op, o_.type, setup_.world.size, bytes);
    auto measured = o_.op == OpKind::latency ? measure_latency(bytes) : measure(size);
    if (!measured) {
      return measured.error();
    }
    return publish(bytes, size, *measured);
  }

  Result<void> fence() {
    if (setup_.barrier == nullptr) {
      return world_->barrier();
    }
    return setup_.barrier->wait(setup_.world.size, check_);
  }

  void fill(const PlanOptions& p, const Geometry& size, Encoding encoding) {
    const size_t bytes = p.reuse ? buffer_sizes(p, size)[0] : size.in_bytes;
    fill_stream(memory_->span(Buffer::in).first(bytes), 0, stream_key(o_.seed, p.rank, iteration_),
                encoding);
    if (const int source = p.reuse ? reuse_source(p) : -1; source >= 0) {
      fill_stream(memory_->span(Buffer::work).first(bytes), 0,
                  stream_key(o_.seed, static_cast<uint32_t>(source), iteration_), encoding);
    }
  }

  /// Checked iterations are timed one by one from a common start; others run back to back.
  Result<void> prepare(uint64_t i, const PlanOptions& p, const Geometry& size,
                       const Encoding& encoding) {
    if (o_.check || i == 0) {
      fill(p, size, encoding);
    }
    if (o_.check || i == 0 || i == o_.warmup) {
      return fence();
    }
    return {};
  }

  Result<Measured> measure(const Geometry& size) {
    const PlanOptions p = plan_options();
    TransferOptions t{p.rank, o_.depth, o_.group, o_.spin, o_.type, o_.reduce_op};
    auto transfer = Transfer::make(library_->api(), t, make_plan(p, size), *memory_, *links_);
    if (!transfer) {
      return transfer.error();
    }
    const auto expected = expected_output(p, size);
    const Encoding encoding = encoding_for(o_.type, reduces(o_.op), o_.reduce_op, p.ranks);
    const Checker checker(o_.seed, o_.type, o_.reduce_op, encoding);
    (*transfer)->set_comparing(o_.check);
    Measured out;
    SteadyClock clock;
    double seconds = 0;
    double cpu = 0;
    auto faults = start_faults();
    if (!faults) {
      return faults.error();
    }
    if (!o_.faults.empty()) {
      (*transfer)->note_gaps();
    }
    uint64_t total = o_.warmup + (o_.seconds > 0 ? 0 : o_.iterations);
    begin_ = clock.now();
    for (uint64_t i = 0;; ++i, ++iteration_) {
      if (o_.seconds > 0 && i == total) {
        auto more = next_batch_of_all(i - o_.warmup);
        if (!more) {
          return more.error();
        }
        total += *more;
      }
      auto more = goes_on(i, total, faults->get());
      if (!more) {
        return more.error();
      }
      if (!*more) {
        out.iterations = i - o_.warmup;
        break;
      }
      if (auto met = prepare(i, p, size, encoding); !met) {
        return met.error();
      }
      const double cpu_begin = process_cpu_seconds();
      const Instant begin = clock.now();
      if (auto done = (*transfer)->run(check_); !done) {
        return fail(done.code(),
                    fmt::format("iteration {} of {}: {}", i, total, done.error().message()));
      }
      average(expected);
      const Instant end = clock.now();
      if (i >= o_.warmup) {
        const double took = std::chrono::duration<double>(end - begin).count();
        seconds += took;
        out.samples_us.push_back(took * 1e6);
        cpu += process_cpu_seconds() - cpu_begin;
      }
      (*transfer)->compare_rest();
      if (o_.check) {
        for (const Expected& part : expected) {
          checker.check(memory_->span(Buffer::out), part, iteration_, out.check);
        }
      }
      report_progress(end, i, total);
    }
    if (const uint64_t wrong = (*transfer)->wrong_bytes(); wrong > 0) {
      out.check.wrong += wrong;
      out.check.first_finding = fmt::format("{} bytes of reused steps differ", wrong);
    }
    if (*faults) {
      auto reports = (*faults)->finish((*transfer)->gaps());
      if (!reports) {
        return reports.error();
      }
      out.faults = std::move(*reports);
    }
    out.time_s = seconds / static_cast<double>(out.iterations);
    out.cpu_s = cpu / static_cast<double>(out.iterations);
    return out;
  }

  /// Rank 0 decides for all, by its clock since the first measured iteration.
  Result<uint64_t> next_batch_of_all(uint64_t done) {
    SteadyClock clock;
    if (done == 0) {
      begin_ = clock.now();
    }
    const double elapsed_s = std::chrono::duration<double>(clock.now() - begin_).count();
    auto said = world_->broadcast(
        setup_.world.rank == 0 ? std::to_string(next_batch(done, elapsed_s, o_.seconds)) : "");
    if (!said) {
      return said.error();
    }
    return std::strtoull(said->c_str(), nullptr, 10);
  }

  /// What is left of an average after its sum.
  void average(const std::vector<Expected>& parts) {
    if (!reduces(o_.op) || o_.reduce_op != ReduceOp::avg) {
      return;
    }
    for (const Expected& part : parts) {
      finish_average(memory_->span(Buffer::out).subspan(part.offset, part.bytes), o_.type,
                     setup_.world.size);
    }
  }

  /// Rank 0 looks after the faults.
  Result<std::unique_ptr<FaultRunner>> start_faults() {
    if (o_.faults.empty() || setup_.world.rank != 0) {
      return std::unique_ptr<FaultRunner>();
    }
    auto plan = parse_faults(o_.faults);
    if (!plan) {
      return plan.error();
    }
    auto runner = std::make_unique<FaultRunner>(std::move(*plan), o_.fault_rounds, o_.seed);
    if (auto started = runner->start(); !started) {
      return started.error();
    }
    return runner;
  }

  /// Whether there is another iteration: with faults, for as long as there are any.
  Result<bool> goes_on(uint64_t done, uint64_t total, FaultRunner* faults) {
    if (o_.faults.empty() || done < total) {
      return done < total;
    }
    auto said = world_->broadcast(faults != nullptr && faults->active() ? "more" : "");
    if (!said) {
      return said.error();
    }
    return !said->empty();
  }

  Result<Measured> measure_latency(uint64_t bytes) {
    Measured out;
    LatencyOptions l;
    l.rank = setup_.world.rank;
    l.bytes = bytes;
    l.depth = o_.depth;
    l.check = o_.check;
    l.spin = o_.spin;
    l.send_first = o_.send_first;
    l.pause = std::chrono::microseconds(o_.pause_us);
    l.seed = o_.seed;
    uint64_t iterations = o_.warmup;
    for (bool warm = false;; warm = true) {
      if (warm) {
        auto more = next_iterations(out.iterations);
        if (!more) {
          return more.error();
        }
        iterations = *more;
        out.iterations += iterations;
        if (iterations == 0) {
          break;
        }
      }
      l.iterations = iterations;
      l.first_iteration = iteration_;
      iteration_ += iterations;
      if (auto met = fence(); !met) {
        return met.error();
      }
      if (setup_.world.rank > 1) {
        continue;
      }
      auto result = run_latency(library_->api(), l, *memory_, *links_, check_);
      if (!result) {
        return result.error();
      }
      out.check.wrong += result->check.wrong;
      if (out.check.first_finding.empty()) {
        out.check.first_finding = result->check.first_finding;
      }
      if (warm) {
        out.cpu_s += result->cpu_s;
        out.samples_us.insert(out.samples_us.end(), result->half_round_trips_us.begin(),
                              result->half_round_trips_us.end());
      }
    }
    out.cpu_s /= static_cast<double>(std::max<uint64_t>(out.iterations, 1));
    return out;
  }

  /// The measured iterations of latency: all at once, or batches while there is time.
  Result<uint64_t> next_iterations(uint64_t done) {
    if (o_.seconds > 0) {
      return next_batch_of_all(done);
    }
    return done == 0 ? o_.iterations : 0;
  }

  void report_progress(Instant now, uint64_t done, uint64_t total) {
    if (setup_.report_progress && setup_.world.rank == 0 && now >= next_progress_) {
      next_progress_ = now + progress_interval;
      if (o_.seconds > 0) {
        const double part = std::chrono::duration<double>(now - begin_).count() / o_.seconds;
        done = static_cast<uint64_t>(std::min(part, 1.0) * 1000);
        total = 1000;
      }
      send_to_parent({{"type", "progress"}, {"done", done}, {"of", total}});
    }
  }

  // Combines what all ranks measured and sends it to the parent from rank 0: the slowest rank's
  // time, everybody's processor time and wrong elements.
  Result<void> publish(uint64_t requested, const Geometry& size, Measured& mine) {
    json local{{"time", mine.time_s},
               {"cpu", mine.cpu_s},
               {"wrong", mine.check.wrong},
               {"iterations", mine.iterations}};
    if (mine.check.wrong > 0) {
      local["finding"] = fmt::format("rank {}, byte {} of the output: {}", setup_.world.rank,
                                     mine.check.first_offset, mine.check.first_finding);
    }
    if (!mine.samples_us.empty() && (setup_.world.rank == 0 || o_.op != OpKind::latency)) {
      const LatencySummary s = summarize(std::move(mine.samples_us));
      local["latency"] = {{"min_us", s.min_us},
                          {"p50_us", s.p50_us},
                          {"mean_us", s.mean_us},
                          {"p99_us", s.p99_us},
                          {"max_us", s.max_us}};
    }
    auto all = world_->all_gather(local.dump());
    if (!all) {
      return all.error();
    }
    if (setup_.world.rank != 0) {
      return {};
    }
    json result{
        {"type", "result"}, {"requested", requested}, {"bytes", size.bytes}, {"count", size.count}};
    double time = 0;
    double cpu = 0;
    uint64_t wrong = 0;
    for (const std::string& text : *all) {
      const json one = json::parse(text, nullptr, false);
      if (one.is_discarded()) {
        return fail(Errc::internal, "a rank's result could not be read");
      }
      time = std::max(time, one["time"].get<double>());
      cpu += one["cpu"].get<double>();
      wrong += one["wrong"].get<uint64_t>();
      if (one.contains("finding") && !result.contains("finding")) {
        result["finding"] = one["finding"];
      }
      if (one.contains("latency")) {
        take_slowest(result["latency"], one["latency"]);
      }
      result["iterations"] = one["iterations"];
    }
    result["time_s"] = time;
    result["cpu_s"] = cpu;
    result["wrong"] = wrong;
    for (const FaultReport& fault : mine.faults) {
      result["faults"].push_back(
          {fault.what, std::chrono::duration<double, std::milli>(fault.stall).count()});
    }
    send_to_parent(result);
    return {};
  }

  /// Each number of the slowest rank.
  static void take_slowest(json& of_all, const json& of_one) {
    if (of_all.is_null()) {
      of_all = json::object();
    }
    for (const auto& [name, value] : of_one.items()) {
      of_all[name] = std::max(of_all.value(name, 0.0), value.get<double>());
    }
  }

  Result<void> close() {
    activity_ = "closing";
    if (auto closed = links_->close(); !closed) {
      return closed;
    }
    links_.reset();
    if (auto ended = library_->api().finalize(); !ended) {
      return ended;
    }
    library_.reset();
    return {};
  }

  void send_to_parent(const json& message) {
    const std::string text = message.dump(-1, ' ', false, json::error_handler_t::replace);
    // The parent reads until every rank has ended; if it is gone there is nobody to tell.
    [[maybe_unused]] const ssize_t sent = send(
        setup_.channel_fd, text.data(), std::min(text.size(), channel_packet_max), MSG_NOSIGNAL);
  }

  const RankSetup& setup_;
  const PerfOptions& o_;
  std::unique_ptr<World> world_;
  std::unique_ptr<NetLibrary> library_;
  NetDevice device_;
  int device_number_ = 0;
  std::unique_ptr<BufferSet> memory_;
  std::unique_ptr<LinkSet> links_;
  IdleCheck check_ = [this] { return world_->check(); };
  uint64_t iteration_ = 0;
  Instant begin_{};  ///< of what is measured
  Instant next_progress_{};
  std::string activity_;
};

}  // namespace

int run_rank(const RankSetup& setup) {
  set_plugin_log(fmt::format("nccl-ha perf: rank {} ({}): ", setup.world.rank, setup.plugin.name),
                 setup.options.verbose ? PluginLog::everything : PluginLog::warnings);
  Rank rank(setup);
  const Result<void> done = rank.run();
  if (!done) {
    rank.report(done.error());
    // A plugin in an unknown state is not asked to clean up: that could take for ever.
    _exit(1);
  }
  return 0;
}

}  // namespace nccl_ha::tools
