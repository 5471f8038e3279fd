#include "tools/perf/options.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>

#include "tools/perf/faults.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t sizes_max = 100'000;

}  // namespace

const char* to_text(OpKind op) {
  switch (op) {
    case OpKind::all_reduce:
      return "all_reduce";
    case OpKind::all_gather:
      return "all_gather";
    case OpKind::reduce_scatter:
      return "reduce_scatter";
    case OpKind::broadcast:
      return "broadcast";
    case OpKind::alltoall:
      return "alltoall";
    case OpKind::sendrecv:
      return "sendrecv";
    case OpKind::pt2pt:
      return "pt2pt";
    case OpKind::latency:
      return "latency";
  }
  return "?";
}

const char* describe(OpKind op) {
  switch (op) {
    case OpKind::all_reduce:
      return "every rank gets the reduction of all ranks' buffers (ring)";
    case OpKind::all_gather:
      return "every rank gets all ranks' buffers (ring)";
    case OpKind::reduce_scatter:
      return "every rank gets its part of the reduction (ring)";
    case OpKind::broadcast:
      return "every rank gets the root's buffer (chain)";
    case OpKind::alltoall:
      return "every rank sends a part of its buffer to every other";
    case OpKind::sendrecv:
      return "every rank sends to the next and receives from the one before";
    case OpKind::pt2pt:
      return "bandwidth from rank 0 to rank 1";
    case OpKind::latency:
      return "half round-trip time between ranks 0 and 1";
  }
  return "?";
}

bool reduces(OpKind op) { return op == OpKind::all_reduce || op == OpKind::reduce_scatter; }

Result<uint64_t> parse_bytes(std::string_view text) {
  const auto wrong = [&](const char* why) {
    return fail(Errc::invalid_argument,
                fmt::format("'{}' is not a size: {} (examples: 8, 512K, 16M, 1G)", text, why));
  };
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return wrong("too large");
  }
  if (error != std::errc()) {
    return wrong("it does not begin with a number");
  }
  std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  unsigned shift = 0;
  if (!rest.empty()) {
    const char unit = static_cast<char>(std::toupper(static_cast<unsigned char>(rest.front())));
    const size_t at = std::string_view("KMGT").find(unit);
    if (at != std::string_view::npos) {
      shift = 10 * (static_cast<unsigned>(at) + 1);
      rest.remove_prefix(1);
    }
    if (shift != 0 && (rest.starts_with("i") || rest.starts_with("I")) && rest.size() == 2) {
      rest.remove_prefix(1);
    }
    if (rest == "B" || rest == "b") {
      rest.remove_prefix(1);
    }
  }
  if (!rest.empty()) {
    return wrong("unknown unit");
  }
  if (shift != 0 && value > (UINT64_MAX >> shift)) {
    return wrong("too large");
  }
  return value << shift;
}

Result<std::pair<std::string, std::string>> parse_assignment(std::string_view text) {
  const size_t at = text.find('=');
  if (at == std::string_view::npos || at == 0) {
    return fail(Errc::invalid_argument, fmt::format("'{}' is not of the form NAME=VALUE", text));
  }
  return std::pair(std::string(text.substr(0, at)), std::string(text.substr(at + 1)));
}

std::vector<uint64_t> size_sweep(const PerfOptions& options) {
  std::vector<uint64_t> sizes;
  uint64_t size = options.min_bytes;
  while (size <= options.max_bytes && sizes.size() <= sizes_max) {
    sizes.push_back(size);
    uint64_t next = 0;
    if (options.step_bytes != 0) {
      if (__builtin_add_overflow(size, options.step_bytes, &next)) {
        break;
      }
    } else if (__builtin_mul_overflow(size, options.step_factor, &next) || next <= size) {
      // A sweep by factors that starts at 0 goes on at one element.
      if (size != 0) {
        break;
      }
      next = type_size(options.type);
    }
    size = next;
  }
  return sizes;
}

namespace {

Result<void> check_ranges(const PerfOptions& options, uint32_t world_size) {
  const auto refuse = [](std::string what) {
    return fail(Errc::invalid_argument, std::move(what));
  };
  if (world_size < 2) {
    return refuse("at least 2 ranks are needed: raise --ranks or start more of them");
  }
  if (options.min_bytes > options.max_bytes) {
    return refuse(fmt::format("--minbytes {} is larger than --maxbytes {}", options.min_bytes,
                              options.max_bytes));
  }
  if (options.step_bytes == 0 && options.step_factor < 2 &&
      options.min_bytes != options.max_bytes) {
    return refuse("--stepfactor must be at least 2");
  }
  if (size_sweep(options).size() > sizes_max) {
    return refuse(fmt::format("more than {} sizes: raise --stepbytes", sizes_max));
  }
  if (options.root >= world_size) {
    return refuse(
        fmt::format("--root {} does not exist: ranks are 0 to {}", options.root, world_size - 1));
  }
  if (reduces(options.op) && options.reduce_op != ReduceOp::min &&
      options.reduce_op != ReduceOp::max && options.reduce_op != ReduceOp::prod &&
      world_size > exact_ranks_max(options.type)) {
    return refuse(fmt::format(
        "--op {} of {} is exact, and so can be checked, with at most {} "
        "ranks: take float",
        to_text(options.reduce_op), to_text(options.type), exact_ranks_max(options.type)));
  }
  const size_t element = type_size(options.type);
  if (options.message_bytes < element || options.message_bytes % element != 0 ||
      options.message_bytes > (1U << 30)) {
    return refuse(fmt::format("--step {} must be a multiple of {} ({} elements) and at most 1G",
                              options.message_bytes, element, to_text(options.type)));
  }
  if (options.depth < 1 || options.depth > 32) {
    return refuse(
        fmt::format("--depth {} must be 1 to 32: NCCL keeps at most 32 requests per "
                    "connection",
                    options.depth));
  }
  if (options.group < 1 || options.group > 8) {
    return refuse(fmt::format("--group {} must be 1 to 8", options.group));
  }
  if (options.conns < 1 || options.conns > 64) {
    return refuse(fmt::format("--conns {} must be 1 to 64", options.conns));
  }
  return {};
}

/// A run that cannot end in time is refused before it begins.
Result<void> check_time(const PerfOptions& options) {
  if (options.seconds == 0) {
    return {};
  }
  if (!options.faults.empty()) {
    return fail(Errc::invalid_argument,
                "--seconds goes not with --fault, whose runs last as long as the faults");
  }
  const double plugins = options.against.name.empty() ? 1 : 2;
  const double least = options.seconds * static_cast<double>(size_sweep(options).size()) *
                       static_cast<double>(options.rounds) * plugins;
  if (least >= static_cast<double>(options.timeout_s)) {
    return fail(
        Errc::invalid_argument,
        fmt::format("{} sizes, {} round{} and {} plugin{} of --seconds {} take {:.0f} s and "
                    "more: raise --timeout, which is {} s",
                    size_sweep(options).size(), options.rounds, options.rounds == 1 ? "" : "s",
                    plugins, plugins == 1 ? "" : "s", options.seconds, least, options.timeout_s));
  }
  return {};
}

}  // namespace

Result<void> settle(PerfOptions& options, uint32_t world_size) {
  if (auto checked = check_ranges(options, world_size); !checked) {
    return checked.error();
  }
  const bool grouped = options.op == OpKind::sendrecv || options.op == OpKind::alltoall ||
                       options.op == OpKind::pt2pt;
  if (options.group > 1 && !grouped) {
    return fail(Errc::invalid_argument,
                fmt::format("--group works with sendrecv, alltoall and pt2pt, not with {}",
                            to_text(options.op)));
  }
  if (options.bidirectional && options.op != OpKind::pt2pt) {
    return fail(Errc::invalid_argument, "--bidirectional works with pt2pt only");
  }
  if (options.reuse && options.op != OpKind::pt2pt && options.op != OpKind::sendrecv) {
    return fail(Errc::invalid_argument, "--reuse works with pt2pt and sendrecv only");
  }
  const bool latency = options.op == OpKind::latency;
  if (options.pause_us != 0 && !latency) {
    return fail(Errc::invalid_argument, "--pause works with latency only");
  }
  if (options.send_first && !latency) {
    return fail(Errc::invalid_argument, "--send-first works with latency only");
  }
  if (latency) {
    options.type = DataType::uint8;  // messages, not elements
  }
  if (!options.faults.empty()) {
    auto plan = parse_faults(options.faults);
    if (!plan) {
      return plan.error();
    }
    if (latency || !options.against.name.empty() || options.min_bytes != options.max_bytes) {
      return fail(Errc::invalid_argument,
                  "--fault goes with one size of one plugin, and not with latency");
    }
    if (plan->size() * options.fault_rounds > faults_max) {
      return fail(Errc::invalid_argument,
                  fmt::format("--fault: {} faults, at most {} are possible",
                              plan->size() * options.fault_rounds, faults_max));
    }
  }
  if (options.iterations == 0) {
    options.iterations = latency ? 10000 : 20;
  }
  if (options.warmup == UINT64_MAX) {
    options.warmup = latency ? 1000 : 5;
  }
  if (options.rounds == 0) {
    options.rounds = options.against.name.empty() && options.baseline.empty() ? 1 : 5;
  }
  return check_time(options);
}

}  // namespace nccl_ha::tools
