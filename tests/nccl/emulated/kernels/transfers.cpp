// Send and receive: all transfers of a batch at the same time, each a step further when it can.
#include <atomic>
#include <cstring>
#include <memory>

#include "tests/nccl/emulated/kernels/ran.h"
#include "tests/nccl/emulated/kernels/work.h"

namespace nccl_ha::emulated {
namespace {

struct Part {
  ncclConnInfo* conn = nullptr;
  char* user = nullptr;
  size_t bytes = 0;
  size_t chunk = 0;
  bool low_latency = false;
  bool registered = false;  ///< the NIC reads or writes the user's memory itself
};

class Transfer {
 public:
  Transfer(const Block& block, bool sends, const Part& part)
      : block_(block), sends_(sends), part_(part), conn_(part.conn), step_(part.conn->step) {
    if (!sends_ && !part_.low_latency) {
      store(conn_->head, step_);
    }
    if (!sends_ && part_.registered) {
      set_size(conn_, step_, 0);  // the proxy may have the memory written from now on
    }
  }

  bool finished() const { return finished_; }

  /// False when it has to wait.
  bool advance() {
    if (done_ == part_.bytes && leaving_) {
      return look_whether_left();
    }
    if (sends_ ? !may_send(conn_, step_, 1) : !part_.low_latency && !may_receive(conn_, step_, 1)) {
      return false;
    }
    const size_t count = std::min(part_.chunk, part_.bytes - done_);
    if (!move(count)) {
      return false;
    }
    ++step_;
    if (!sends_) {
      store(conn_->head, step_);
    } else if (!part_.low_latency) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
      store(conn_->tail, step_);
    }
    done_ += count;
    if (done_ == part_.bytes) {
      conn_->step = step_;
      leaving_ = sends_ && part_.registered;
      finished_ = !leaving_;
      count_run(ncclFuncSendRecv, NCCL_ALGO_RING,
                part_.low_latency ? NCCL_PROTO_LL : NCCL_PROTO_SIMPLE);
    }
    return true;
  }

 private:
  /// The user may write where the NIC still reads, until the proxy has taken the size back.
  bool look_whether_left() {
    finished_ = size_of(conn_, step_ - 1) == -1;
    return finished_;
  }

  bool move(size_t count) {
    if (part_.low_latency) {
      return sends_ ? write_lines(count) : read_lines(count);
    }
    if (sends_) {
      set_size(conn_, step_, count);
    }
    // Empty transfers may come without a buffer.
    if (count > 0 && !part_.registered) {
      char* slot = simple_slot(conn_, step_);
      char* user = part_.user + done_;
      std::memcpy(sends_ ? slot : user, sends_ ? user : slot, count);
    }
    return true;
  }

  bool write_lines(size_t count) {
    const Lines slot = ll_slot(block_, conn_, step_);
    const size_t filled = (count + 7) / 8;
    const size_t lines = ll_must_clean(step_) ? slot.count : filled;
    set_size(conn_, step_, lines * sizeof(ncclLLFifoLine));
    for (size_t i = 0; i < lines; ++i) {
      uint64_t data = 0;
      if (i < filled) {
        std::memcpy(&data, part_.user + done_ + i * 8, std::min<size_t>(8, count - i * 8));
      }
      write_line(slot.first + i, data, NCCL_LL_FLAG(step_ + 1));
    }
    return true;
  }

  /// Goes on where it was when the last line was not there yet.
  bool read_lines(size_t count) {
    const Lines slot = ll_slot(block_, conn_, step_);
    for (; line_ < (count + 7) / 8; ++line_) {
      uint64_t data = 0;
      if (!read_line(slot.first + line_, NCCL_LL_FLAG(step_ + 1), &data)) {
        return false;
      }
      std::memcpy(part_.user + done_ + line_ * 8, &data, std::min<size_t>(8, count - line_ * 8));
    }
    line_ = 0;
    return true;
  }

  const Block& block_;
  const bool sends_;
  const Part part_;
  ncclConnInfo* const conn_;
  uint64_t step_;
  size_t done_ = 0;
  size_t line_ = 0;
  bool leaving_ = false;
  bool finished_ = false;
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

/// What of a send or a receive is this channel's.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

Range range_of(int channels, int part, size_t bytes) {
  Range range;
  ncclP2pPartBounds(channels, part, bytes, &range.begin, &range.end);
  return range;
}

/// Memory that the NIC knows goes in the largest pieces that a network takes.
size_t chunk_of(unsigned registered, uint8_t size) {
  return registered != 0 ? size_t{NCCL_MAX_NET_SIZE} : u32fp8Decode(size);
}

void add(const Block& block, const ncclDevWorkP2p& work, Transfers& all) {
  if (work.sendIpcReg != 0 || work.recvIpcReg != 0) {
    give_up("user buffers that peers map are not emulated");
  }
  const int part = (block.channel_id - work.channelBase) & (work.nP2pChannels - 1);
  auto* const from = static_cast<char*>(work.sendAddr);
  auto* const to = static_cast<char*>(work.recvAddr);
  if (work.sendRank == block.comm->rank && work.nSendChannels != 0) {
    if (part < work.nSendChannels && from != to) {
      const Range range = range_of(work.nSendChannels, part, work.sendBytes);
      std::memmove(to + range.begin, from + range.begin, range.end - range.begin);
    }
    return;
  }
  if (part < work.nSendChannels) {
    const Range range = range_of(work.nSendChannels, part, work.sendBytes);
    all.push_back(std::make_unique<Transfer>(
        block, true,
        Part{block.to(work.sendRank, 1), from + range.begin, range.end - range.begin,
             chunk_of(work.sendNetReg, work.sendChunkSize_u32fp8), work.sendProtoLL != 0,
             work.sendNetReg != 0}));
  }
  if (part < work.nRecvChannels) {
    const Range range = range_of(work.nRecvChannels, part, work.recvBytes);
    all.push_back(std::make_unique<Transfer>(
        block, false,
        Part{block.from(work.recvRank, 1), to + range.begin, range.end - range.begin,
             chunk_of(work.recvNetReg, work.recvChunkSize_u32fp8), work.recvProtoLL != 0,
             work.recvNetReg != 0}));
  }
}

}  // namespace

void run_transfers(const Block& block, const std::vector<ncclDevWorkP2p>& works) {
  Transfers all;
  for (const ncclDevWorkP2p& work : works) {
    add(block, work, all);
  }
  Patience patience;
  for (;;) {
    bool waiting = false;
    bool moved = false;
    for (const auto& transfer : all) {
      while (!transfer->finished() && transfer->advance()) {
        moved = true;
      }
      waiting = waiting || !transfer->finished();
    }
    if (!waiting) {
      return;
    }
    if (moved) {
      patience = Patience();
    } else {
      block.wait(patience);
    }
  }
}

}  // namespace nccl_ha::emulated
