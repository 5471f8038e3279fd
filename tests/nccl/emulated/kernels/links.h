// A channel's connections for one piece of a collective (a ring's two, or those of half a tree),
// and the buffers of the user between them.
#pragma once

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "tests/nccl/emulated/kernels/block.h"
#include "tests/nccl/emulated/kernels/line128.h"
#include "tests/nccl/emulated/kernels/mistake.h"
#include "tests/nccl/emulated/kernels/reduction.h"

namespace nccl_ha::emulated {

/// One step of a collective on one rank.  All ranks' steps must be NCCL's own, in its order: peers'
/// chunks meet only by that.
template <class T>
struct Step {
  bool receive = false;     ///< from every peer that is received from
  bool send = false;        ///< the same to every peer that is sent to
  const T* mine = nullptr;  ///< what of the user is sent or added
  bool from_input = true;   ///< `mine` is input, not a result already
  T* result = nullptr;      ///< where the user wants the result
  ssize_t count = 0;        ///< negative counts are empty steps
  bool last = false;        ///< nobody adds anything to the result
  T* place = nullptr;  ///< of the chunk in the user's output, where a registered one is received
};

/// How many steps of the buffer a chunk takes with protocol Simple, and in how many slices.
struct Slices {
  int count = 1;
  int steps = 1;
};

/// Ranks; what is no rank (-1) ends a list.
struct Peers {
  std::span<const int> from;
  std::span<const int> to;
};

template <class T>
class Links {
 public:
  /// `registered`: the NIC reads and writes the user's buffers, and the proxy knows where.
  Links(const Block& block, int protocol, Slices slices, Reduction<T> reduction, const Peers& peers,
        bool registered = false)
      : block_(block),
        protocol_(protocol),
        slices_(protocol == NCCL_PROTO_SIMPLE ? slices : Slices{}),
        reduction_(reduction),
        registered_(registered) {
    for (const int peer : until_none(peers.from)) {
      from_.push_back(at_its_step(block.from(peer, 0)));
      if (protocol_ == NCCL_PROTO_SIMPLE) {
        store(from_.back().conn->head, from_.back().step);
      }
      if (registered_) {
        // The proxy may have the memory written from now on.
        set_size(from_.back().conn, from_.back().step, 0);
      }
    }
    for (const int peer : until_none(peers.to)) {
      to_.push_back(at_its_step(block.to(peer, 0)));
    }
    theirs_.resize(from_.size());
    slots_.resize(to_.size());
  }
  /// The user may write where the NIC still reads, until the proxy has taken the last size back.
  void leave() {
    for (const Link& link : to_) {
      const uint64_t last = link.step - static_cast<uint64_t>(slices_.steps);
      block_.wait_until([&] { return !registered_ || size_of(link.conn, last) == -1; });
    }
  }
  ~Links() {
    for (const std::vector<Link>* links : {&from_, &to_}) {
      for (const Link& link : *links) {
        link.conn->step = link.step;
      }
    }
  }
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  void run(const Step<T>& step) {
    const auto count = static_cast<size_t>(std::max<ssize_t>(step.count, 0));
    switch (protocol_) {
      case NCCL_PROTO_LL:
        return low_latency(step, count);
      case NCCL_PROTO_LL128:
        return low_latency_128(step, count);
      default:
        return simple(step, count);
    }
  }

 private:
  struct Link {
    ncclConnInfo* conn = nullptr;
    uint64_t step = 0;
  };

  static std::span<const int> until_none(std::span<const int> peers) {
    const auto none = std::find_if(peers.begin(), peers.end(), [](int peer) { return peer < 0; });
    return {peers.begin(), none};
  }

  Link at_its_step(ncclConnInfo* conn) const {
    const auto chunk = static_cast<uint64_t>(slices_.count * slices_.steps);
    return {conn, (conn->step + chunk - 1) / chunk * chunk};
  }

  std::span<Link> receiving(const Step<T>& step) {
    return std::span(from_).first(step.receive ? from_.size() : 0);
  }
  std::span<Link> sending(const Step<T>& step) {
    return std::span(to_).first(step.send ? to_.size() : 0);
  }

  /// From a registered buffer the NIC takes what this rank sends first.
  bool writes_slots(const Step<T>& step) const {
    return step.send && (step.receive || !registered_);
  }

  /// What is in theirs_ and of the user, from element `first` on, into slots_ and to the user.
  void combine_from(const Step<T>& step, size_t first, size_t count) {
    combine_all<T>(reduction_, step.from_input, step.mine != nullptr ? step.mine + first : nullptr,
                   std::span(theirs_).first(step.receive ? theirs_.size() : 0), step.last,
                   std::span(slots_).first(writes_slots(step) ? slots_.size() : 0),
                   step.result != nullptr ? step.result + first : nullptr, count);
  }

  void simple(const Step<T>& step, size_t count) {
    const auto bytes = static_cast<size_t>(block_.comm->buffSizes[NCCL_PROTO_SIMPLE]);
    const size_t full = bytes / NCCL_STEPS / sizeof(T) * static_cast<size_t>(slices_.steps);
    const size_t parts = 16 * static_cast<size_t>(slices_.count);
    size_t slice = std::max((count + parts - 1) / parts * 16, full / 32);
    size_t offset = 0;
    for (int i = 0; i < slices_.count; ++i) {
      slice = std::min(slice, count - offset);
      simple_slice(step, offset, slice);
      offset += slice;
    }
  }

  void simple_slice(const Step<T>& step, size_t offset, size_t count) {
    const auto steps = static_cast<uint64_t>(slices_.steps);
    for (size_t i = 0; i < receiving(step).size(); ++i) {
      const Link& link = from_[i];
      block_.wait_until([&] { return may_receive(link.conn, link.step, slices_.steps); });
      theirs_[i] = reinterpret_cast<const T*>(simple_slot(link.conn, link.step));
    }
    for (size_t i = 0; i < sending(step).size(); ++i) {
      const Link& link = to_[i];
      block_.wait_until([&] { return may_send(link.conn, link.step, slices_.steps); });
      slots_[i] = reinterpret_cast<T*>(simple_slot(link.conn, link.step));
      const size_t sent = mistaken(Mistake::size) && count > 0 ? count - 1 : count;
      set_size(link.conn, link.step, sent * sizeof(T));
      if (mistaken(Mistake::early_tail)) {
        store(link.conn->tail, link.step + steps);
        give_way(std::chrono::milliseconds(5));
      }
    }
    if (registered_ && step.receive) {
      std::fill(theirs_.begin(), theirs_.end(), step.place + offset);
      std::fill(slots_.begin(), slots_.end(), step.place + offset);
    }
    if (count > 0) {
      combine_from(step, offset, count);
      if (writes_slots(step) && mistaken(Mistake::element)) {
        auto* last = reinterpret_cast<char*>(slots_.front() + count) - 1;
        *last = static_cast<char>(*last ^ 0x40);
      }
    }
    for (Link& link : receiving(step)) {
      link.step += steps;
      store(link.conn->head, link.step);
    }
    for (Link& link : sending(step)) {
      link.step += steps;
      std::atomic_thread_fence(std::memory_order_seq_cst);
      store(link.conn->tail, link.step);
    }
  }

  void low_latency(const Step<T>& step, size_t count) {
    constexpr size_t per_line = sizeof(uint64_t) / sizeof(T);
    const size_t lines = (count + per_line - 1) / per_line;
    for (const Link& link : sending(step)) {
      block_.wait_until([&] { return may_send(link.conn, link.step, 1); });
      const size_t filled = ll_must_clean(link.step) ? slot_of(link).count : lines;
      set_size(link.conn, link.step, filled * sizeof(ncclLLFifoLine));
    }
    std::vector<T> received(theirs_.size() * per_line);
    std::vector<T> results(slots_.size() * per_line);
    point_at(received, results, per_line);
    for (size_t i = 0; i < lines; ++i) {
      for (size_t peer = 0; peer < receiving(step).size(); ++peer) {
        const Link& link = from_[peer];
        const ncclLLFifoLine* line = slot_of(link).first + i;
        uint64_t data = 0;
        block_.wait_until([&] { return read_line(line, NCCL_LL_FLAG(link.step + 1), &data); });
        std::memcpy(static_cast<void*>(&received[peer * per_line]), &data, sizeof data);
      }
      combine_from(step, i * per_line, std::min(per_line, count - i * per_line));
      for (size_t peer = 0; peer < sending(step).size(); ++peer) {
        const Link& link = to_[peer];
        uint64_t data = 0;
        std::memcpy(&data, &results[peer * per_line], sizeof data);
        const uint64_t named = link.step + (mistaken(Mistake::flag) ? 2 : 1);
        write_line(slot_of(link).first + i, data, NCCL_LL_FLAG(named));
      }
    }
    for (Link& link : receiving(step)) {
      store(link.conn->head, ++link.step);
    }
    for (Link& link : sending(step)) {
      const Lines slot = slot_of(link);
      for (size_t i = lines; ll_must_clean(link.step) && i < slot.count; ++i) {
        write_line(slot.first + i, 0, NCCL_LL_FLAG(link.step + 1));
      }
      ++link.step;
    }
  }

  void low_latency_128(const Step<T>& step, size_t count) {
    constexpr size_t per_pack = ll128_pack_data * sizeof(uint64_t) / sizeof(T);
    const size_t packs = (count + per_pack - 1) / per_pack;
    for (const Link& link : sending(step)) {
      block_.wait_until([&] { return may_send(link.conn, link.step, 1); });
      set_size(link.conn, link.step, packs * ll128_pack_words * sizeof(uint64_t));
    }
    if (mistaken(Mistake::early_flag)) {
      announce_128(step, packs);
      give_way(std::chrono::milliseconds(5));
    }
    std::vector<T> received(theirs_.size() * per_pack);
    std::vector<T> results(slots_.size() * per_pack);
    point_at(received, results, per_pack);
    for (size_t i = 0; i < packs; ++i) {
      for (size_t peer = 0; peer < receiving(step).size(); ++peer) {
        const Link& link = from_[peer];
        const Pack<uint64_t> data(reinterpret_cast<uint64_t*>(&received[peer * per_pack]),
                                  ll128_pack_data);
        block_.wait_until([&] { return read_pack128(pack_of(link, i), link.step + 1, data); });
      }
      combine_from(step, i * per_pack, std::min(per_pack, count - i * per_pack));
      for (size_t peer = 0; peer < sending(step).size(); ++peer) {
        const Pack<const uint64_t> data(
            reinterpret_cast<const uint64_t*>(&results[peer * per_pack]), ll128_pack_data);
        write_pack128(pack_of(to_[peer], i), data, to_[peer].step + 1);
      }
    }
    for (Link& link : receiving(step)) {
      store(link.conn->head, ++link.step);
    }
    for (Link& link : sending(step)) {
      ++link.step;
      std::atomic_thread_fence(std::memory_order_seq_cst);
      store(link.conn->tail, link.step);
    }
  }

  void announce_128(const Step<T>& step, size_t packs) {
    for (const Link& link : sending(step)) {
      for (size_t i = 0; i < packs; ++i) {
        write_flags128(pack_of(link, i), link.step + 1);
      }
      store(link.conn->tail, link.step + 1);
    }
  }

  template <class Word>
  using Pack = std::span<Word, ll128_pack_data>;

  Lines slot_of(const Link& link) const { return ll_slot(block_, link.conn, link.step); }
  uint64_t* pack_of(const Link& link, size_t i) const {
    return ll128_slot(block_, link.conn, link.step) + i * ll128_pack_words;
  }

  /// With flags between the data a peer's part is put together apart from the slot.
  void point_at(std::vector<T>& received, std::vector<T>& results, size_t each) {
    for (size_t i = 0; i < theirs_.size(); ++i) {
      theirs_[i] = &received[i * each];
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
      slots_[i] = &results[i * each];
    }
  }

  const Block& block_;
  const int protocol_;
  const Slices slices_;
  const Reduction<T> reduction_;
  const bool registered_;
  std::vector<Link> from_;
  std::vector<Link> to_;
  std::vector<const T*> theirs_;  ///< by peer: what it sent
  std::vector<T*> slots_;         ///< by peer: where what is sent to it is put together
};

}  // namespace nccl_ha::emulated
