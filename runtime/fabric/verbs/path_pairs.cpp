#include "runtime/fabric/verbs/path_pairs.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/fabric/verbs/receive_ring.h"
#include "runtime/fabric/verbs/send_ring.h"

namespace nccl_ha::fabric::verbs {
namespace {

Error not_wanted() { return fail(Errc::closed, "the path was given up before it was made"); }

}  // namespace

PathPairs::PathPairs(Device& device, Plan plan) : device_(device), plan_(std::move(plan)) {
  plan_.completions->reserve(plan_.entries);
}

PathPairs::~PathPairs() { plan_.completions->give_back(plan_.entries); }

void PathPairs::open() {
  const bool wanted = !ended_ && wanted_.load(std::memory_order_relaxed);
  opened_ = wanted ? try_open() : Result<Opened>(not_wanted());
  if (!opened_) {
    static_cast<void>(destroy());
  }
  plan_.memory.clear();  // its owner's alone from now on
}

Result<PathPairs::Opened> PathPairs::try_open() {
  Opened made;
  if (auto found = made.ends.look_up(device_, plan_.port, plan_.gid); !found) {
    return found.error();
  }
  for (const auto& own : plan_.memory) {
    if (auto known = own->enter(); !known) {
      return known.error();
    }
  }
  if (auto queue = plan_.completions->open(); !queue) {
    return queue.error();
  }
  if (plan_.domain) {
    auto own = device_.domain(*plan_.domain);
    if (!own) {
      return own.error();
    }
    domain_ = std::move(*own);
  } else if (auto scratch = plan_.completions->port().open_scratch(); !scratch) {
    return scratch.error();
  }
  if (auto pair = make_pair(made.ends, made); !pair) {
    return pair.error();
  }
  made.pair = pair_.get();
  made.completions = plan_.completions->get();
  made.scratch = domain_ ? &domain_->scratch() : &plan_.completions->port().scratch();
  made.ends.set_local(pair_.get()->qp_num, plan_.packet_sequence, *made.scratch);
  if (plan_.options.ece && device_.library().queue_pair.query_ece != nullptr) {
    made.ends.set_local_ece(ece());
  }
  return made;
}

Result<void> PathPairs::make_pair(const PathEnds& ends, Opened& made) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = plan_.completions->get();
  attributes.recv_cq = plan_.completions->get();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = plan_.sends_max + SendRing::internal_max;
  attributes.cap.max_recv_wr = plan_.receives_max + 2 * ReceiveRing::probes;
  attributes.cap.max_send_sge = gathers_max;
  attributes.cap.max_recv_sge = 1;
  // A clear-to-send of one buffer; more is asked for where the device gives it.
  for (const uint32_t bytes : {256U, 128U, 64U, 0U}) {
    attributes.cap.max_inline_data = bytes;
    if (pair_.create(protection(), attributes) || errno == ENOMEM) {
      break;
    }
  }
  if (pair_.get() == nullptr) {
    const int error = errno;
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot create a queue pair for {} sends and {} "
                            "receives{}",
                            device_.name(), attributes.cap.max_send_wr, attributes.cap.max_recv_wr,
                            memlock_hint(error)),
                error);
  }
  made.inline_max = attributes.cap.max_inline_data;
  if (const int error =
          pair_.initialise(plan_.port, plan_.options.pkey_index, IBV_ACCESS_REMOTE_WRITE);
      error != 0) {
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot initialise a queue pair on port {} (partition "
                            "key index {})",
                            ends.info().device, plan_.port, plan_.options.pkey_index),
                error);
  }
  return {};
}

std::optional<ibv_ece> PathPairs::ece() const {
  ibv_ece said{};
  const bool known = device_.library().queue_pair.query_ece(pair_.get(), &said) == 0;
  return known ? std::optional(said) : std::nullopt;
}

void PathPairs::make_ready(const PathEnds& ends, const QueuePair::Connection& way) {
  ready_ = ended_ ? Result<Ready>(not_wanted()) : try_make_ready(ends, way);
}

Result<PathPairs::Ready> PathPairs::try_make_ready(const PathEnds& ends,
                                                   const QueuePair::Connection& way) {
  const QueuePairCalls& calls = device_.library().queue_pair;
  const WireAddress& peer = ends.peer();
  if (ends.both_know_ece() && calls.set_ece != nullptr) {
    ibv_ece wanted{};
    wanted.vendor_id = peer.ece_vendor;
    wanted.options = peer.ece_options;
    wanted.comp_mask = peer.ece_compatibility;
    // Refused: the plain establishment is used.
    static_cast<void>(calls.set_ece(pair_.get(), &wanted));
  }
  if (auto made = pair_.make_ready(way, plan_.options, ends); !made) {
    return made.error();
  }
  Ready made;
  if (ends.local().has_ece) {
    made.ece = ece();
  }
  if (plan_.flushes_max != 0) {
    if (auto flush = make_flush_pair(ends); !flush) {
      return flush.error();
    }
    made.flush = flush_.get();
  }
  return made;
}

/// Connected with itself.
Result<void> PathPairs::make_flush_pair(const PathEnds& ends) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = plan_.completions->get();
  attributes.recv_cq = plan_.completions->get();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = plan_.flushes_max;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  if (!flush_.create(protection(), attributes)) {
    const int error = errno;
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot create the queue pair for GPU flushes{}",
                            device_.name(), memlock_hint(error)),
                error);
  }
  if (const int error =
          flush_.initialise(plan_.port, plan_.options.pkey_index, IBV_ACCESS_REMOTE_READ);
      error != 0) {
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot initialise the queue pair for GPU flushes",
                            device_.name()),
                error);
  }
  return flush_.make_ready(ends.to_itself(flush_.get()->qp_num), plan_.options, ends);
}

int PathPairs::stop() {
  ended_ = true;
  int first = 0;
  for (QueuePair* pair : {&pair_, &flush_}) {
    const int error = pair->get() == nullptr ? 0 : pair->stop();
    if (error != 0) {
      NHA_LOG_INFO("RDMA device {}: queue pair {} does not go into error: {}", device_.name(),
                   pair->get()->qp_num, std::strerror(error));
      first = first == 0 ? error : first;
    }
  }
  return first < 0 ? EIO : first;
}

int PathPairs::destroy() {
  ended_ = true;
  int first = 0;
  for (QueuePair* pair : {&pair_, &flush_}) {
    const int error = pair->destroy();
    first = first == 0 ? error : first;
  }
  domain_.reset();
  return first < 0 ? EIO : first;
}

}  // namespace nccl_ha::fabric::verbs
