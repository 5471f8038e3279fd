// Collectives on rings and trees, step by step as NCCL's device code has them (src/device/*.h
// there).
#include <cstring>
#include <thread>

#include "tests/nccl/emulated/kernels/links.h"
#include "tests/nccl/emulated/kernels/ran.h"
#include "tests/nccl/emulated/kernels/work.h"

namespace nccl_ha::emulated {
namespace {

/// What of a collective is this channel's: `count` elements from `begin`, in chunks.
struct Extent {
  ssize_t total = 0;
  ssize_t begin = 0;
  ssize_t count = 0;
  ssize_t chunk = 0;
};

class Joined {
 public:
  explicit Joined(std::thread& thread) : thread_(thread) {}
  ~Joined() { thread_.join(); }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;

 private:
  std::thread& thread_;
};

template <class T>
class Collective {
 public:
  Collective(const Block& block, const Function& function, ncclDevWorkColl& work)
      : block_(block),
        function_(function),
        work_(work),
        ring_(block.channel->ring),
        ranks_(block.comm->nRanks),
        in_(static_cast<const T*>(work.sendbuff)),
        out_(static_cast<T*>(work.recvbuff)) {
    ncclCollCbdPart(&work, static_cast<uint32_t>(block.channel_id), function.protocol,
                    static_cast<int>(sizeof(T)), &part_.total, &part_.begin, &part_.count,
                    &part_.chunk);
  }

  void run() {
    switch (function_.collective) {
      case ncclFuncAllReduce:
        function_.algorithm == NCCL_ALGO_TREE ? all_reduce_by_tree() : all_reduce();
        break;
      case ncclFuncAllGather:
        all_gather();
        break;
      case ncclFuncReduceScatter:
        reduce_scatter();
        break;
      case ncclFuncBroadcast:
        broadcast();
        break;
      case ncclFuncReduce:
        reduce();
        break;
      default:
        give_up("unknown collective");
    }
  }

 private:
  Reduction<T> reduction() const {
    uint64_t argument = work_.redOpArg;
    if (work_.redOpArgIsPtr != 0) {
      argument = 0;
      std::memcpy(&argument, reinterpret_cast<const void*>(work_.redOpArg), sizeof(T));
    }
    return Reduction<T>(function_.reduction, argument);
  }

  Links<T> ring(int chunk_steps, int slice_steps) {
    return Links<T>(block_, function_.protocol, {chunk_steps / slice_steps, slice_steps},
                    reduction(), {{&ring_.prev, 1}, {&ring_.next, 1}}, work_.netRegUsed != 0);
  }

  template <class Each>
  void for_each_chunk(Each each) {
    for (ssize_t done = 0; done < part_.count; done += part_.chunk) {
      each(part_.begin + done, std::min(part_.chunk, part_.count - done));
    }
  }

  void all_reduce() {
    Links<T> steps = ring(ALLREDUCE_CHUNKSTEPS, ALLREDUCE_SLICESTEPS);
    const ssize_t loop = ranks_ * part_.chunk;
    for (ssize_t done = 0; done < part_.count; done += loop) {
      const ssize_t left = part_.count - done;
      ssize_t size = part_.chunk;
      if (left < loop) {
        const auto grain = static_cast<ssize_t>(16 / sizeof(T));
        size = ((left + ranks_ - 1) / ranks_ + grain - 1) / grain * grain;
      }
      all_reduce(steps, part_.begin + done, left, size);
    }
    steps.leave();
  }

  void all_reduce(Links<T>& steps, ssize_t begin, ssize_t left, ssize_t size) {
    const ssize_t position = ring_.index;
    const auto chunk_of = [&](ssize_t distance) {  // of the rank so far before this one
      return (position + 2 * ranks_ - distance) % ranks_;
    };
    const auto count = [&](ssize_t chunk) { return std::min(size, left - chunk * size); };
    const auto place = [&](ssize_t chunk) { return begin + chunk * size; };

    ssize_t chunk = chunk_of(1);
    steps.run({.send = true, .mine = in_ + place(chunk), .count = count(chunk)});
    for (ssize_t distance = 2; distance < ranks_; ++distance) {
      chunk = chunk_of(distance);
      steps.run({.receive = true,
                 .send = true,
                 .mine = in_ + place(chunk),
                 .count = count(chunk),
                 .place = out_ + place(chunk)});
    }
    chunk = position;
    steps.run({.receive = true,
               .send = true,
               .mine = in_ + place(chunk),
               .result = out_ + place(chunk),
               .count = count(chunk),
               .last = true,
               .place = out_ + place(chunk)});
    for (ssize_t distance = 1; distance < ranks_ - 1; ++distance) {
      chunk = chunk_of(distance);
      T* const result = out_ + place(chunk);
      steps.run({.receive = true,
                 .send = true,
                 .result = result,
                 .count = count(chunk),
                 .place = result});
    }
    chunk = chunk_of(ranks_ - 1);
    T* const result = out_ + place(chunk);
    steps.run({.receive = true, .result = result, .count = count(chunk), .place = result});
  }

  /// The root sends on each chunk as soon as it has all children's; below it sums go up while
  /// results come down, so that the two do not wait for each other.
  void all_reduce_by_tree() {
    const ncclTree& tree = block_.channel->tree;
    const std::span<const int> up(&tree.up, 1);
    const std::span<const int> down(tree.down);
    if (tree.up < 0) {
      Links<T> both(block_, function_.protocol, {}, reduction(), {down, down});
      for_each_chunk([&](ssize_t at, ssize_t count) {
        both.run({.receive = true,
                  .send = true,
                  .mine = mistaken(Mistake::root) ? nullptr : in_ + at,
                  .result = out_ + at,
                  .count = count,
                  .last = true});
      });
      return;
    }
    const bool inner = tree.down[0] >= 0;
    Links<T> sums(block_, function_.protocol, {}, reduction(), {down, up});
    Links<T> results(block_, function_.protocol, {}, reduction(), {up, down});
    const auto send_up = [&](ssize_t at, ssize_t count) {
      sums.run({.receive = inner, .send = true, .mine = in_ + at, .count = count});
    };
    std::thread upward([&] {
      try {
        for_each_chunk(send_up);
      } catch (const Aborted&) {  // then the way down ends as well
      }
    });
    const Joined joined(upward);
    for_each_chunk([&](ssize_t at, ssize_t count) {
      results.run({.receive = true, .send = inner, .result = out_ + at, .count = count});
    });
  }

  void all_gather() {
    // With one rank on each node the NIC moves all of it at once.
    const bool at_once = work_.netRegUsed != 0 && work_.isOneRPN != 0;
    Links<T> steps = at_once ? ring(1, 1) : ring(ALLGATHER_CHUNKSTEPS, ALLGATHER_SLICESTEPS);
    part_.chunk = at_once ? ssize_t{NCCL_MAX_NET_SIZE} : part_.chunk;
    for_each_chunk([&](ssize_t at, ssize_t count) {
      const auto out_of = [&](ssize_t i) { return out_ + at + ring_.userRanks[i] * part_.total; };
      T* const own = out_of(0);
      steps.run({.send = true,
                 .mine = in_ + at,
                 .result = in_ + at == own ? nullptr : own,
                 .count = count});
      for (ssize_t j = 1; j < ranks_ - 1; ++j) {
        T* const result = out_of(ranks_ - j);
        steps.run(
            {.receive = true, .send = true, .result = result, .count = count, .place = result});
      }
      steps.run({.receive = true, .result = out_of(1), .count = count, .place = out_of(1)});
    });
    steps.leave();
  }

  void reduce_scatter() {
    Links<T> steps = ring(REDUCESCATTER_CHUNKSTEPS, REDUCESCATTER_SLICESTEPS);
    for_each_chunk([&](ssize_t at, ssize_t count) {
      const auto in_of = [&](ssize_t i) { return in_ + at + ring_.userRanks[i] * part_.total; };
      steps.run({.send = true, .mine = in_of(ranks_ - 1), .count = count});
      for (ssize_t j = 2; j < ranks_; ++j) {
        steps.run({.receive = true, .send = true, .mine = in_of(ranks_ - j), .count = count});
      }
      steps.run(
          {.receive = true, .mine = in_of(0), .result = out_ + at, .count = count, .last = true});
    });
  }

  void broadcast() {
    Links<T> steps = ring(BROADCAST_CHUNKSTEPS, BROADCAST_SLICESTEPS);
    const auto root = static_cast<int>(work_.root);
    for_each_chunk([&](ssize_t at, ssize_t count) {
      if (ring_.userRanks[0] == root) {
        T* const result = in_ == out_ ? nullptr : out_ + at;
        steps.run({.send = true, .mine = in_ + at, .result = result, .count = count});
      } else {
        const bool forward = ring_.userRanks[1] != root;
        T* const result = out_ + at;
        steps.run(
            {.receive = true, .send = forward, .result = result, .count = count, .place = result});
      }
    });
    steps.leave();
  }

  void reduce() {
    Links<T> steps = ring(REDUCE_CHUNKSTEPS, REDUCE_SLICESTEPS);
    const auto root = static_cast<int>(work_.root);
    for_each_chunk([&](ssize_t at, ssize_t count) {
      if (ring_.userRanks[ranks_ - 1] == root) {
        steps.run({.send = true, .mine = in_ + at, .count = count});
      } else if (block_.comm->rank == root) {
        steps.run(
            {.receive = true, .mine = in_ + at, .result = out_ + at, .count = count, .last = true});
      } else {
        steps.run({.receive = true, .send = true, .mine = in_ + at, .count = count});
      }
    });
  }

  const Block& block_;
  const Function& function_;
  ncclDevWorkColl& work_;
  const ncclRing& ring_;
  const ssize_t ranks_;
  const T* const in_;
  T* const out_;
  Extent part_;
};

template <class T>
void run_typed(const Block& block, const Function& function, ncclDevWorkColl& work) {
  Collective<T>(block, function, work).run();
}

}  // namespace

void run_collective(const Block& block, const Function& function, ncclDevWorkColl& work) {
  if (work.regUsed != 0) {
    give_up("user buffers that peers map are not emulated");
  }
  count_run(function.collective, function.algorithm, function.protocol);
  switch (function.type) {
    case ncclInt8:
    case ncclUint8:
      return run_typed<uint8_t>(block, function, work);
    case ncclUint32:
      return run_typed<uint32_t>(block, function, work);
    case ncclUint64:
      return run_typed<uint64_t>(block, function, work);
    case ncclFloat16:
      return run_typed<__half>(block, function, work);
    case ncclFloat32:
      return run_typed<float>(block, function, work);
    case ncclFloat64:
      return run_typed<double>(block, function, work);
    case ncclBfloat16:
      return run_typed<__nv_bfloat16>(block, function, work);
    default:
      give_up("this type is not emulated");
  }
}

#if NHA_BATCHED_BROADCASTS
// Broadcasts with different roots take turns, chunk by chunk.
void run_broadcasts(const Block& block, const Function& function,
                    std::vector<ncclDevWorkBcast>& works) {
  const ncclRing& peers = block.channel->ring;
  Links<uint8_t> ring(block, function.protocol, {}, Reduction<uint8_t>(ncclDevSum, 0),
                      {{&peers.prev, 1}, {&peers.next, 1}});
  count_run(function.collective, function.algorithm, function.protocol);
  for (bool unfinished = true; unfinished;) {
    unfinished = false;
    for (ncclDevWorkBcast& work : works) {
      const size_t bytes = std::min(work.bytes, static_cast<size_t>(work.chunkSize));
      const auto count = static_cast<ssize_t>(bytes);
      auto* out = static_cast<uint8_t*>(work.recvbuff) + work.bytes_done;
      if (count > 0 && work.ringDepth == 0) {
        const auto* in = static_cast<const uint8_t*>(work.sendbuff) + work.bytes_done;
        ring.run({.send = true, .mine = in, .result = in == out ? nullptr : out, .count = count});
      } else if (count > 0) {
        const bool forward = work.ringDepth != block.comm->nRanks - 1;
        ring.run({.receive = true, .send = forward, .result = out, .count = count});
      }
      work.bytes -= bytes;
      work.bytes_done += bytes;
      unfinished = unfinished || work.bytes != 0;
    }
  }
}
#endif

}  // namespace nccl_ha::emulated
