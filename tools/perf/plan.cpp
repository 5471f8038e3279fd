#include "tools/perf/plan.h"

#include <algorithm>
#include <numeric>

namespace nccl_ha::tools {
namespace {

/// A range of elements.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Part `index` of `parts` nearly equal parts of a range.
Range part_of(Range whole, uint64_t parts, uint64_t index) {
  const uint64_t length = whole.end - whole.begin;
  const uint64_t each = length / parts;
  const uint64_t longer = length % parts;  // the first so many get one more
  const uint64_t begin = whole.begin + each * index + std::min(index, longer);
  return {begin, begin + each + (index < longer ? 1 : 0)};
}

class Planner {
 public:
  Planner(const PlanOptions& options, const Geometry& size)
      : o_(options), size_(size), element_(type_size(options.type)) {}

  Plan run() {
    switch (o_.op) {
      case OpKind::all_reduce:
      case OpKind::reduce_scatter:
      case OpKind::all_gather:
        for (uint32_t channel = 0; channel < o_.channels; ++channel) {
          plan_ring(channel);
        }
        break;
      case OpKind::broadcast:
        for (uint32_t channel = 0; channel < o_.channels; ++channel) {
          plan_broadcast(channel);
        }
        break;
      case OpKind::alltoall:
        plan_alltoall();
        break;
      case OpKind::sendrecv:
        plan_whole_buffer(next(), previous());
        break;
      case OpKind::pt2pt:
      case OpKind::latency: {
        const bool both = o_.bidirectional || o_.op == OpKind::latency;
        const bool sends = o_.rank == 0 || (o_.rank == 1 && both);
        const bool recvs = o_.rank == 1 || (o_.rank == 0 && both);
        plan_whole_buffer(sends ? static_cast<int>(1 - o_.rank) : -1,
                          recvs ? static_cast<int>(1 - o_.rank) : -1);
        break;
      }
    }
    return std::move(plan_);
  }

 private:
  int next() const { return static_cast<int>((o_.rank + 1) % o_.ranks); }
  int previous() const { return static_cast<int>((o_.rank + o_.ranks - 1) % o_.ranks); }
  /// Rank number `by` before this one.
  uint32_t back(uint32_t by) const { return (o_.rank + 2 * o_.ranks - by) % o_.ranks; }

  /// Elements of block `block` that travel on a channel.
  Range block(uint32_t block, uint32_t channel) const {
    Range range;
    if (o_.op == OpKind::all_reduce) {
      range = part_of({0, size_.count}, o_.ranks, block);
    } else {
      range = {size_.count * block, size_.count * (block + 1)};
    }
    return part_of(range, o_.channels, channel);
  }

  /// Calls f(offset, bytes, index) for each message a range is cut into.
  template <class F>
  void cut(Range range, F f) const {
    const uint64_t step = o_.message_bytes / element_;
    uint32_t index = 0;
    uint64_t at = range.begin;
    do {
      const uint64_t end = std::min(range.end, at + step);
      f(at * element_, (end - at) * element_, index++);
      at = end;
    } while (at < range.end);
  }

  void add_send(PlannedFlow& flow, Buffer buffer, Range range, uint32_t after, bool gated) {
    cut(range, [&](size_t offset, size_t bytes, uint32_t index) {
      PlannedMessage message{buffer, offset, bytes};
      message.after = gated ? after + index + 1 : 0;
      flow.messages.push_back(message);
    });
  }

  void add_receive(PlannedFlow& flow, Range range) {
    cut(range, [&](size_t offset, size_t bytes, uint32_t) {
      flow.messages.push_back({Buffer::out, offset, bytes});
    });
  }

  void add_reduction(PlannedFlow& flow, uint32_t channel, Range range, Buffer result,
                     size_t result_shift) {
    cut(range, [&](size_t offset, size_t bytes, uint32_t) {
      PlannedMessage message{Buffer::slots, 0, bytes};
      message.offset = (channel * o_.depth + flow.messages.size() % o_.depth) * o_.message_bytes;
      message.reduces = true;
      message.operand_offset = offset;
      message.result = result;
      message.result_offset = offset - result_shift;
      flow.messages.push_back(message);
    });
  }

  // A ring of n ranks.  Reducing: in step s a rank sends block r-s-1 and receives block r-s-2, adds
  // its own contribution and passes it on; after n-1 steps it holds block r.  Gathering: in step s
  // it sends block r-s and receives block r-s-1.  Partial sums go to `work`, so that a block still
  // being sent is never overwritten by its final value.
  void plan_ring(uint32_t channel) {
    PlannedFlow send{
        static_cast<uint32_t>(next()), channel, static_cast<int>(plan_.recvs.size()), {}};
    PlannedFlow recv{static_cast<uint32_t>(previous()), channel, -1, {}};
    uint32_t arrived = 0;  // messages received before the step at hand, without the newest step
    const bool gathers = o_.op != OpKind::reduce_scatter;
    const bool combines = o_.op != OpKind::all_gather;
    if (combines) {
      const size_t own =
          o_.op == OpKind::reduce_scatter ? size_.count * o_.rank * element_ : size_t{0};
      for (uint32_t step = 0; step + 1 < o_.ranks; ++step) {
        const bool last = step + 2 == o_.ranks;
        add_send(send, step == 0 ? Buffer::in : Buffer::work, block(back(step + 1), channel),
                 arrived, step > 0);
        arrived = static_cast<uint32_t>(recv.messages.size());
        add_reduction(recv, channel, block(back(step + 2), channel),
                      last ? Buffer::out : Buffer::work, last ? own : 0);
      }
    }
    if (gathers) {
      for (uint32_t step = 0; step + 1 < o_.ranks; ++step) {
        const bool own = step == 0 && !combines;
        const Range outgoing = block(back(step), channel);
        // A rank's own block lies at the start of its input.
        add_send(send, own ? Buffer::in : Buffer::out,
                 own ? part_of({0, size_.count}, o_.channels, channel) : outgoing, arrived, !own);
        arrived = static_cast<uint32_t>(recv.messages.size());
        add_receive(recv, block(back(step + 1), channel));
      }
      if (!combines && channel == 0) {
        plan_.copies.push_back({0, o_.rank * size_.in_bytes, size_.in_bytes});
      }
    }
    plan_.sends.push_back(std::move(send));
    plan_.recvs.push_back(std::move(recv));
  }

  // A chain that begins at the root; each rank forwards what it received.
  void plan_broadcast(uint32_t channel) {
    const uint32_t position = (o_.rank + o_.ranks - o_.root) % o_.ranks;
    const Range range = part_of({0, size_.count}, o_.channels, channel);
    if (position == 0) {
      if (channel == 0) {
        plan_.copies.push_back({0, 0, size_.in_bytes});
      }
    } else {
      PlannedFlow recv{static_cast<uint32_t>(previous()), channel, -1, {}};
      add_receive(recv, range);
      plan_.recvs.push_back(std::move(recv));
    }
    if (position + 1 < o_.ranks) {
      PlannedFlow send{static_cast<uint32_t>(next()),
                       channel,
                       position == 0 ? -1 : static_cast<int>(plan_.recvs.size()) - 1,
                       {}};
      add_send(send, position == 0 ? Buffer::in : Buffer::out, range, 0, position != 0);
      plan_.sends.push_back(std::move(send));
    }
  }

  void plan_alltoall() {
    for (uint32_t distance = 1; distance < o_.ranks; ++distance) {
      const uint32_t to = (o_.rank + distance) % o_.ranks;
      const uint32_t from = back(distance);
      for (uint32_t channel = 0; channel < o_.channels; ++channel) {
        PlannedFlow send{to, channel, -1, {}};
        add_send(send, Buffer::in, block(to, channel), 0, false);
        plan_.sends.push_back(std::move(send));
        PlannedFlow recv{from, channel, -1, {}};
        add_receive(recv, block(from, channel));
        plan_.recvs.push_back(std::move(recv));
      }
    }
    const size_t own = size_.count * element_;
    plan_.copies.push_back({own * o_.rank, own * o_.rank, own});
  }

  /// The whole input to one rank and the whole output from one; -1: none.
  void plan_whole_buffer(int to, int from) {
    for (uint32_t channel = 0; channel < o_.channels; ++channel) {
      const Range range = part_of({0, size_.count}, o_.channels, channel);
      if (to >= 0) {
        PlannedFlow send{static_cast<uint32_t>(to), channel, -1, {}};
        add_send(send, Buffer::in, range, 0, false);
        place_in_ring(send);
        plan_.sends.push_back(std::move(send));
      }
      if (from >= 0) {
        PlannedFlow recv{static_cast<uint32_t>(from), channel, -1, {}};
        add_receive(recv, range);
        place_in_ring(recv);
        plan_.recvs.push_back(std::move(recv));
      }
    }
  }

  /// With reuse, message i lives in step i modulo the number in flight, as in NCCL's own buffers.
  void place_in_ring(PlannedFlow& flow) const {
    if (!o_.reuse) {
      return;
    }
    const size_t steps = o_.depth * o_.group;
    for (size_t i = 0; i < flow.messages.size(); ++i) {
      flow.messages[i].offset = (flow.channel * steps + i % steps) * o_.message_bytes;
      flow.messages[i].compares = flow.messages[i].buffer == Buffer::out;
    }
  }

  const PlanOptions& o_;
  const Geometry& size_;
  size_t element_;
  Plan plan_;
};

bool splits_by_rank(OpKind op) {
  return op == OpKind::all_gather || op == OpKind::reduce_scatter || op == OpKind::alltoall;
}

}  // namespace

Geometry geometry(OpKind op, DataType type, uint32_t ranks, uint64_t requested_bytes) {
  const size_t element = type_size(type);
  Geometry out;
  out.count = requested_bytes / element / (splits_by_rank(op) ? ranks : 1);
  const size_t one = out.count * element;
  const size_t all = one * (splits_by_rank(op) ? ranks : 1);
  out.bytes = all;
  out.in_bytes = op == OpKind::all_gather ? one : all;
  out.out_bytes = op == OpKind::reduce_scatter ? one : all;
  out.work_bytes = reduces(op) ? all : 0;
  return out;
}

double bus_factor(OpKind op, uint32_t ranks, bool bidirectional) {
  const double n = ranks;
  switch (op) {
    case OpKind::all_reduce:
      return 2 * (n - 1) / n;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::alltoall:
      return (n - 1) / n;
    case OpKind::broadcast:
    case OpKind::sendrecv:
    case OpKind::latency:
      return 1;
    case OpKind::pt2pt:
      return bidirectional ? 2 : 1;
  }
  return 1;
}

std::vector<std::pair<uint32_t, uint32_t>> links(OpKind op, uint32_t ranks, bool bidirectional) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  if (op == OpKind::pt2pt || op == OpKind::latency) {
    out.emplace_back(0, 1);
    if (bidirectional || op == OpKind::latency) {
      out.emplace_back(1, 0);
    }
    return out;
  }
  for (uint32_t from = 0; from < ranks; ++from) {
    if (op != OpKind::alltoall) {
      out.emplace_back(from, (from + 1) % ranks);
      continue;
    }
    for (uint32_t distance = 1; distance < ranks; ++distance) {
      out.emplace_back(from, (from + distance) % ranks);
    }
  }
  return out;
}

std::array<size_t, buffers> buffer_sizes(const PlanOptions& options, const Geometry& size) {
  const size_t step = options.channels * options.depth * options.message_bytes;
  if (options.reuse) {
    return {step * options.group, step * options.group, step * options.group, 0};
  }
  return {size.in_bytes, size.out_bytes, size.work_bytes, reduces(options.op) ? step : 0};
}

int reuse_source(const PlanOptions& options) {
  if (options.op == OpKind::sendrecv) {
    return static_cast<int>((options.rank + options.ranks - 1) % options.ranks);
  }
  if (options.rank == 1) {
    return 0;
  }
  return options.rank == 0 && options.bidirectional ? 1 : -1;
}

Plan make_plan(const PlanOptions& options, const Geometry& size) {
  return Planner(options, size).run();
}

std::vector<Expected> expected_output(const PlanOptions& options, const Geometry& size) {
  const uint32_t rank = options.rank;
  const size_t one = size.count * type_size(options.type);
  std::vector<uint32_t> everybody(options.ranks);
  std::iota(everybody.begin(), everybody.end(), 0U);
  std::vector<Expected> out;
  if (options.reuse) {
    return out;
  }
  switch (options.op) {
    case OpKind::all_reduce:
      out.push_back({0, one, 0, everybody});
      break;
    case OpKind::reduce_scatter:
      out.push_back({0, one, rank * one, everybody});
      break;
    case OpKind::all_gather:
      for (const uint32_t other : everybody) {
        out.push_back({other * one, one, 0, {other}});
      }
      break;
    case OpKind::alltoall:
      for (const uint32_t other : everybody) {
        out.push_back({other * one, one, rank * one, {other}});
      }
      break;
    case OpKind::broadcast:
      out.push_back({0, one, 0, {options.root}});
      break;
    case OpKind::sendrecv:
      out.push_back({0, one, 0, {(rank + options.ranks - 1) % options.ranks}});
      break;
    case OpKind::pt2pt:
    case OpKind::latency:
      if (rank == 1 || (rank == 0 && (options.bidirectional || options.op == OpKind::latency))) {
        out.push_back({0, one, 0, {1 - rank}});
      }
      break;
  }
  return out;
}

}  // namespace nccl_ha::tools
