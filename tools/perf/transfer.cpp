#include "tools/perf/transfer.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

namespace nccl_ha::tools {
namespace {

/// Tags of a grouped receive are this plus the position in the group.
constexpr int group_tag = 100;
/// Idle passes between two looks at the clock and at the other ranks.
constexpr uint32_t passes_per_check = 1024;

}  // namespace

Result<std::unique_ptr<Transfer>> Transfer::make(const NetApi& api, const TransferOptions& options,
                                                 const Plan& plan, const BufferSet& memory,
                                                 const LinkSet& links) {
  std::unique_ptr<Transfer> transfer(new Transfer(api, options));
  // Gates point into recvs_, which must not move any more when the first is taken.
  transfer->recvs_.reserve(plan.recvs.size());
  transfer->sends_.reserve(plan.sends.size());
  for (const bool sends : {false, true}) {
    for (const PlannedFlow& planned : sends ? plan.sends : plan.recvs) {
      if (auto bound = transfer->bind(planned, sends, memory, links); !bound) {
        return bound.error();
      }
    }
  }
  for (const LocalCopy& copy : plan.copies) {
    transfer->copies_.push_back({memory.data(Buffer::out) + copy.out_offset,
                                 memory.data(Buffer::in) + copy.in_offset, copy.bytes});
  }
  return transfer;
}

Result<void> Transfer::bind(const PlannedFlow& planned, bool sends, const BufferSet& memory,
                            const LinkSet& links) {
  const Link* link = links.find(planned.peer, planned.channel, sends);
  if (link == nullptr) {
    return fail(Errc::internal,
                fmt::format("no connection {} rank {}", sends ? "to" : "from", planned.peer));
  }
  Flow flow;
  flow.peer = planned.peer;
  flow.channel = planned.channel;
  flow.comm = link->comm;
  flow.gate = planned.gate < 0 ? nullptr : &recvs_[static_cast<size_t>(planned.gate)].done;
  const bool grouped = options_.group > 1;
  const int rank_tag = static_cast<int>(sends ? options_.rank : planned.peer);
  for (uint32_t i = 0; i < planned.messages.size(); ++i) {
    const PlannedMessage& m = planned.messages[i];
    Item item;
    item.data = memory.data(m.buffer) + m.offset;
    item.bytes = m.bytes;
    item.mhandle = link->mhandles[static_cast<size_t>(m.buffer)];
    item.after = m.after;
    // NCCL's tag is the sender's rank; a group needs one per position.
    item.tag = grouped ? group_tag + static_cast<int>(i % options_.group) : rank_tag;
    item.reduces = m.reduces;
    item.compared = m.compares ? memory.data(Buffer::work) + m.offset : nullptr;
    item.operand = memory.data(Buffer::in) + m.operand_offset;
    item.result = memory.data(m.result) + m.result_offset;
    flow.items.push_back(item);
  }
  const auto count = static_cast<uint32_t>(flow.items.size());
  if (sends && grouped) {
    // Every other group leaves in reverse: within a group the tags decide, not the order.
    for (uint32_t begin = options_.group; begin < count; begin += 2 * options_.group) {
      const uint32_t end = std::min(count, begin + options_.group);
      std::reverse(flow.items.begin() + begin, flow.items.begin() + end);
    }
  }
  flow.total = sends ? count : (count + options_.group - 1) / options_.group;
  flow.window = sends ? options_.depth * options_.group : options_.depth;
  flow.requests.resize(flow.window);
  (sends ? sends_ : recvs_).push_back(std::move(flow));
  return {};
}

std::string Transfer::link_text(const Flow& flow, bool sends) const {
  const uint32_t from = sends ? options_.rank : flow.peer;
  const uint32_t to = sends ? flow.peer : options_.rank;
  return fmt::format("connection {}->{} channel {}", from, to, flow.channel);
}

void Transfer::fail_flow(const char* call, abi::NcclResult result, const Flow& flow, bool sends) {
  failed_ = true;
  const Error cause = api_.call_failed(call, result);
  error_ = fail(cause.code, fmt::format("{} on {}, request {} of {}", cause.what,
                                        link_text(flow, sends), flow.done, flow.total));
}

bool Transfer::progress_send(Flow& flow) {
  bool moved = false;
  while (flow.posted < flow.total && flow.posted - flow.done < flow.window) {
    const Item& item = flow.items[flow.posted];
    if (flow.gate != nullptr && *flow.gate < item.after) {
      break;
    }
    void* request = nullptr;
    const auto result =
        api_.isend(flow.comm, item.data, item.bytes, item.tag, item.mhandle, &request);
    if (result != abi::NcclResult::success) {
      fail_flow("isend", result, flow, true);
      return true;
    }
    if (request == nullptr) {
      break;
    }
    flow.requests[flow.posted++ % flow.window] = request;
    moved = true;
  }
  while (flow.done < flow.posted) {
    int done = 0;
    int size = 0;
    const auto result = api_.test(flow.requests[flow.done % flow.window], &done, &size);
    if (result != abi::NcclResult::success) {
      fail_flow("test", result, flow, true);
      return true;
    }
    if (done == 0) {
      break;
    }
    moved = true;
    if (++flow.done == flow.total) {
      --unfinished_;
    }
  }
  return moved;
}

bool Transfer::post_receive(Flow& flow) {
  void* data[group_max];
  size_t sizes[group_max];
  int tags[group_max];
  void* mhandles[group_max];
  const auto first = static_cast<size_t>(flow.posted) * options_.group;
  const size_t count = std::min<size_t>(options_.group, flow.items.size() - first);
  for (size_t i = 0; i < count; ++i) {
    const Item& item = flow.items[first + i];
    data[i] = item.data;
    sizes[i] = item.bytes;
    tags[i] = item.tag;
    mhandles[i] = item.mhandle;
  }
  void* request = nullptr;
  const auto result =
      api_.irecv(flow.comm, static_cast<int>(count), data, sizes, tags, mhandles, &request);
  if (result != abi::NcclResult::success) {
    fail_flow("irecv", result, flow, false);
    return false;
  }
  if (request == nullptr) {
    return false;
  }
  flow.requests[flow.posted++ % flow.window] = request;
  return true;
}

void Transfer::finish_receive(Flow& flow, const int* sizes) {
  const auto first = static_cast<size_t>(flow.done) * options_.group;
  const size_t count = std::min<size_t>(options_.group, flow.items.size() - first);
  for (size_t i = 0; i < count; ++i) {
    const Item& item = flow.items[first + i];
    if (static_cast<size_t>(sizes[i]) != item.bytes) {
      failed_ = true;
      error_ =
          fail(Errc::remote,
               fmt::format("{} reported {} bytes for message {} on {}, which has {}", api_.name(),
                           sizes[i], first + i, link_text(flow, false), item.bytes));
      return;
    }
    if (is_overwritten(flow, first + i)) {
      compare(item);
    }
    if (item.reduces) {
      reduce(item.result, item.operand, item.data, item.bytes, options_.type, options_.reduce_op);
    }
  }
}

void Transfer::compare(const Item& item) {
  if (item.compared == nullptr || !comparing_ ||
      std::memcmp(item.data, item.compared, item.bytes) == 0) {
    return;
  }
  const auto* found = static_cast<const std::byte*>(item.data);
  const auto* wanted = static_cast<const std::byte*>(item.compared);
  for (size_t at = 0; at < item.bytes; ++at) {
    wrong_bytes_ += found[at] != wanted[at] ? 1 : 0;
  }
}

void Transfer::compare_rest() {
  for (const Flow& flow : recvs_) {
    for (size_t i = 0; i < flow.items.size(); ++i) {
      if (!is_overwritten(flow, i)) {
        compare(flow.items[i]);
      }
    }
  }
}

bool Transfer::progress_receive(Flow& flow) {
  bool moved = false;
  while (flow.posted < flow.total && flow.posted - flow.done < flow.window) {
    if (!post_receive(flow)) {
      break;
    }
    moved = true;
  }
  while (flow.done < flow.posted && !failed_) {
    int done = 0;
    int sizes[group_max] = {};
    const auto result = api_.test(flow.requests[flow.done % flow.window], &done, sizes);
    if (result != abi::NcclResult::success) {
      fail_flow("test", result, flow, false);
      return true;
    }
    if (done == 0) {
      break;
    }
    finish_receive(flow, sizes);
    moved = true;
    if (++flow.done == flow.total) {
      --unfinished_;
    }
  }
  return moved;
}

Result<void> Transfer::run(const IdleCheck& check) {
  for (const Copy& copy : copies_) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  unfinished_ = 0;
  for (auto* flows : {&recvs_, &sends_}) {
    for (Flow& flow : *flows) {
      flow.posted = 0;
      flow.done = 0;
      unfinished_ += flow.total > 0 ? 1 : 0;
    }
  }
  SteadyClock clock;
  Instant moved_at = noting_gaps_ ? clock.now() : Instant{};
  for (uint32_t idle = 0; unfinished_ > 0;) {
    bool moved = false;
    for (Flow& flow : recvs_) {
      moved |= progress_receive(flow);
    }
    for (Flow& flow : sends_) {
      moved |= progress_send(flow);
    }
    if (failed_) {
      return error_;
    }
    if (moved) {
      if (noting_gaps_) {
        const Instant now = clock.now();
        if (now - moved_at >= std::chrono::milliseconds(1)) {
          gaps_.push_back({moved_at, now});
        }
        moved_at = now;
      }
      continue;
    }
    if (!options_.spin) {
      sched_yield();
    }
    if (++idle % passes_per_check == 0) {
      if (auto checked = check(); !checked) {
        return fail(checked.code(), fmt::format("{} ({})", checked.error().what, progress()));
      }
    }
  }
  return {};
}

std::string Transfer::progress() const {
  std::string text;
  int shown = 0;
  for (const bool sends : {false, true}) {
    for (const Flow& flow : sends ? sends_ : recvs_) {
      if (flow.done < flow.total && shown++ < 8) {
        text += fmt::format("{}{}: {} of {} requests done, {} in flight", text.empty() ? "" : "; ",
                            link_text(flow, sends), flow.done, flow.total, flow.posted - flow.done);
      }
    }
  }
  return text.empty() ? "nothing outstanding" : text;
}

}  // namespace nccl_ha::tools
