// NCCL's kernels on host threads, one per channel (one CUDA block).  Only NCCL's own headers say
// what the structures look like.  Whatever is not emulated ends the process with a message.
#include <cuda_runtime.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/nccl/emulated/cuda/kernel.h"
#include "tests/nccl/emulated/kernels/work.h"

namespace nccl_ha::emulated {

void give_up(const char* why) {
  std::fprintf(stderr, "emulated kernel: %s\n", why);
  std::abort();
}

namespace {

/// Appends the structures that a batch names by a bit set.
void fetch(const ncclDevKernelArgs* args, const ncclDevWorkBatch& batch, size_t size,
           std::vector<char>& into) {
  const bool in_args = args->workStorageType == ncclDevWorkStorageTypeArgs;
  for (size_t i = 0; i < 64; ++i) {
    if ((batch.offsetBitset >> i & 1) == 0) {
      continue;
    }
    // By packs of 16 bytes, since the buffer wraps.
    for (size_t pack = 0; pack < size; pack += 16) {
      const uint32_t offset = batch.offsetBase + static_cast<uint32_t>(i * size + pack);
      const char* from = in_args
                             ? reinterpret_cast<const char*>(args) + offset
                             : static_cast<const char*>(args->workBuf) + (offset & args->workMask);
      into.insert(into.end(), from, from + 16);
    }
  }
}

template <class Work>
std::vector<Work> as(const std::vector<char>& bytes, size_t size) {
  std::vector<Work> works(bytes.size() / size);
  for (size_t i = 0; i < works.size(); ++i) {
    std::memcpy(static_cast<void*>(&works[i]), bytes.data() + i * size, sizeof(Work));
  }
  return works;
}

void run_works(const Block& block, const ncclDevWorkBatch& batch, const std::vector<char>& bytes,
               size_t size) {
  const Function& function = function_of(batch.funcId);
  switch (batch.workType) {
    case ncclDevWorkTypeP2p:
      run_transfers(block, as<ncclDevWorkP2p>(bytes, size));
      return;
#if NHA_BATCHED_BROADCASTS
    case ncclDevWorkTypeBcast: {
      auto works = as<ncclDevWorkBcast>(bytes, size);
      run_broadcasts(block, function, works);
      return;
    }
#endif
    case ncclDevWorkTypeColl:
      for (ncclDevWorkColl& work : as<ncclDevWorkColl>(bytes, size)) {
        run_collective(block, function, work);
      }
      return;
    default:
      give_up("this kind of work is not emulated");
  }
}

void run_block(const ncclDevKernelArgs* args, unsigned index, int channel_id) {
  Block block;
  block.comm = args->comm;
  block.channel = &reinterpret_cast<ncclKernelCommAndChannels*>(args->comm)->channels[channel_id];
  block.channel_id = channel_id;
  const auto* batches = reinterpret_cast<const ncclDevWorkBatch*>(args + 1);
  try {
    for (size_t at = index;;) {
      std::vector<char> bytes;
      const size_t size =
          static_cast<size_t>(ncclDevWorkSize(static_cast<ncclDevWorkType>(batches[at].workType)));
      fetch(args, batches[at], size, bytes);
      while (batches[at].nextExtends != 0) {
        at += batches[at].nextJump;
        fetch(args, batches[at], size, bytes);
      }
      run_works(block, batches[at], bytes, size);
      block.channel->workCounter += bytes.size() / size;
      if (batches[at].nextJump == 0) {
        return;
      }
      at += batches[at].nextJump;
    }
  } catch (const Aborted&) {
    return;
  }
}

void run_kernel(const void* arguments, size_t, unsigned blocks, unsigned) {
  const auto* args = static_cast<const ncclDevKernelArgs*>(arguments);
  std::vector<int> channels;
  for (int i = 0; i < MAXCHANNELS; ++i) {
    if ((args->channelMask >> i & 1) != 0) {
      channels.push_back(i);
    }
  }
  if (channels.size() != blocks) {
    give_up("a launch has not one block for each channel");
  }
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < blocks; ++i) {
    threads.emplace_back([=] {
      pthread_setname_np(pthread_self(), "fake block");
      run_block(args, i, channels[i]);
    });
  }
  run_block(args, 0, channels[0]);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

__attribute__((constructor)) void announce() {
  for (int i = 0; i < ncclDevKernelCount; ++i) {
    if (ncclDevKernelList[i] != nullptr) {
      nha_emulate_kernel(ncclDevKernelList[i], run_kernel);
    }
  }
}

}  // namespace
}  // namespace nccl_ha::emulated

// Reducing within one rank is a kernel of its own in NCCL; only the copy is needed here.
ncclResult_t ncclLaunchOneRank(void* to, void const* from, size_t count,
                               struct ncclDevRedOpFull reduction, ncclDataType_t type,
                               cudaStream_t stream) {
  if (reduction.op == ncclDevPreMulSum) {
    nccl_ha::emulated::give_up("a scaled reduction within one rank is not emulated");
  }
  if (to != from) {
    (void)cudaMemcpyAsync(to, from, count * static_cast<size_t>(ncclTypeSize(type)),
                          cudaMemcpyDefault, stream);
  }
  return ncclSuccess;
}

// NCCL 2.29 resets counters of device-initiated communication, which is missing here, by a kernel.
// Weak: other versions bring theirs, or have none.
struct ncclComm;
struct ncclDevComm;
__attribute__((weak)) ncclResult_t ncclGinResetSignalsAndCounters(ncclComm*, const ncclDevComm*) {
  return ncclSuccess;
}
