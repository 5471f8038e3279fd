// Ring collectives, step by step as NCCL's device code has them (src/device/*.h there).
#include <cstring>

#include "tests/nccl/emulated/kernels/ring.h"
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
        all_reduce();
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
  Ring<T> ring(int chunk_steps, int slice_steps) {
    uint64_t argument = work_.redOpArg;
    if (work_.redOpArgIsPtr != 0) {
      argument = 0;
      std::memcpy(&argument, reinterpret_cast<const void*>(work_.redOpArg), sizeof(T));
    }
    return Ring<T>(block_, function_.protocol, chunk_steps / slice_steps, slice_steps,
                   Reduction<T>(function_.reduction, argument));
  }

  template <class Each>
  void for_each_chunk(Each each) {
    for (ssize_t done = 0; done < part_.count; done += part_.chunk) {
      each(part_.begin + done, std::min(part_.chunk, part_.count - done));
    }
  }

  void all_reduce() {
    Ring<T> steps = ring(ALLREDUCE_CHUNKSTEPS, ALLREDUCE_SLICESTEPS);
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
  }

  void all_reduce(Ring<T>& steps, ssize_t begin, ssize_t left, ssize_t size) {
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
      steps.run({.receive = true, .send = true, .mine = in_ + place(chunk), .count = count(chunk)});
    }
    chunk = position;
    steps.run({.receive = true,
               .send = true,
               .mine = in_ + place(chunk),
               .result = out_ + place(chunk),
               .count = count(chunk),
               .last = true});
    for (ssize_t distance = 1; distance < ranks_ - 1; ++distance) {
      chunk = chunk_of(distance);
      steps.run(
          {.receive = true, .send = true, .result = out_ + place(chunk), .count = count(chunk)});
    }
    chunk = chunk_of(ranks_ - 1);
    steps.run({.receive = true, .result = out_ + place(chunk), .count = count(chunk)});
  }

  void all_gather() {
    Ring<T> steps = ring(ALLGATHER_CHUNKSTEPS, ALLGATHER_SLICESTEPS);
    for_each_chunk([&](ssize_t at, ssize_t count) {
      const auto out_of = [&](ssize_t i) { return out_ + at + ring_.userRanks[i] * part_.total; };
      T* const own = out_of(0);
      steps.run({.send = true,
                 .mine = in_ + at,
                 .result = in_ + at == own ? nullptr : own,
                 .count = count});
      for (ssize_t j = 1; j < ranks_ - 1; ++j) {
        steps.run({.receive = true, .send = true, .result = out_of(ranks_ - j), .count = count});
      }
      steps.run({.receive = true, .result = out_of(1), .count = count});
    });
  }

  void reduce_scatter() {
    Ring<T> steps = ring(REDUCESCATTER_CHUNKSTEPS, REDUCESCATTER_SLICESTEPS);
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
    Ring<T> steps = ring(BROADCAST_CHUNKSTEPS, BROADCAST_SLICESTEPS);
    const auto root = static_cast<int>(work_.root);
    for_each_chunk([&](ssize_t at, ssize_t count) {
      if (ring_.userRanks[0] == root) {
        T* const result = in_ == out_ ? nullptr : out_ + at;
        steps.run({.send = true, .mine = in_ + at, .result = result, .count = count});
      } else {
        const bool forward = ring_.userRanks[1] != root;
        steps.run({.receive = true, .send = forward, .result = out_ + at, .count = count});
      }
    });
  }

  void reduce() {
    Ring<T> steps = ring(REDUCE_CHUNKSTEPS, REDUCE_SLICESTEPS);
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
  if (work.regUsed != 0 || work.netRegUsed != 0) {
    give_up("registered user buffers are not emulated");
  }
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
  Ring<uint8_t> ring(block, function.protocol, 1, 1, Reduction<uint8_t>(ncclDevSum, 0));
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
