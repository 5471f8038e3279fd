// Making, connecting and breaking an RC queue pair.
#include "runtime/fabric/verbs/verbs_path.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr unsigned packet_sequence_bits = 24;

}  // namespace

VerbsPath::VerbsPath(PathEnvironment& environment, const PathOptions& options, PathOwner* owner,
                     const PathPlace& place)
    : env_(environment),
      owner_(owner),
      options_(options),
      place_(place),
      handshake_(environment),
      flushes_(*environment.device, place.ids(WorkId::Lane::flush), options.flushes_max),
      pair_(*environment.device),
      sends_(place.ids(WorkId::Lane::send), options.writes_max),
      receives_(place.ids(WorkId::Lane::receive), options.receives_max, options.receives_spare),
      fence_(environment, environment.options, environment.device->health) {
  handshake_.bind([](void* self) { static_cast<VerbsPath*>(self)->on_handshake_timer(); }, this);
  fence_.bind(
      [](void* self) {
        auto& path = *static_cast<VerbsPath*>(self);
        path.on_fence(path.fence_.check(path.returned()));
      },
      this);
}

VerbsPath::~VerbsPath() {
  env_.table.remove(*this);
  // One that still has work fills the completion queue until it is gone, so that is waited for; a
  // device that failed may take long.
  if (pair_.get() != nullptr && (fence_.closed() || !env_.device->health.usable())) {
    static_cast<void>(
        env_.device->destroyer().destroy({pair_.release(), flushes_.pair().release()}, domain_));
  }
}

Result<void> VerbsPath::open(const GidPreference& want) {
  const Device& device = *env_.device;
  if (auto found = ends_.look_up(device, env_.port_number, want); !found) {
    return found;
  }
  traits_ = env_.options.traits(!ends_.ethernet(), device.peer_memory() || device.dmabuf(),
                                ends_.info().speed_mbps);
  if (options_.own_domain) {
    auto own = env_.device->domain(options_.domain);
    if (!own) {
      return own.error();
    }
    domain_ = std::move(*own);
  }
  if (auto made = make_queue_pair(); !made) {
    return made;
  }
  ibv_port_attr port_attributes{};
  static_cast<void>(
      device.library().device.query_port(device.context(), env_.port_number, &port_attributes));
  write_max_ = port_attributes.max_msg_sz;
  ends_.set_local(pair_.get()->qp_num, env_.secrets->bits(packet_sequence_bits), scratch());
  if (env_.options.ece && device.library().queue_pair.query_ece != nullptr) {
    query_ece();
  }
  return post_probe_receives();
}

Result<void> VerbsPath::make_queue_pair() {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = place_.completions;
  attributes.recv_cq = place_.completions;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = options_.writes_max + SendRing::internal_max;
  attributes.cap.max_recv_wr = options_.receives_max + 2 * ReceiveRing::probes;
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
    return nccl_ha::fail(Errc::system,
                         fmt::format("RDMA device {}: cannot create a queue pair for {} sends and "
                                     "{} receives{}",
                                     ends_.info().device, attributes.cap.max_send_wr,
                                     attributes.cap.max_recv_wr, memlock_hint(error)),
                         error);
  }
  inline_max_ = attributes.cap.max_inline_data;
  if (const int error =
          pair_.initialise(env_.port_number, env_.options.pkey_index, IBV_ACCESS_REMOTE_WRITE);
      error != 0) {
    return nccl_ha::fail(
        Errc::system,
        fmt::format("RDMA device {}: cannot initialise a queue pair on port {} (partition key "
                    "index {})",
                    ends_.info().device, env_.port_number, env_.options.pkey_index),
        error);
  }
  return {};
}

// The peer's probes meet the first receives.
Result<void> VerbsPath::post_probe_receives() {
  for (uint32_t i = 0; i < ReceiveRing::probes; ++i) {
    if (!receives_.post(pair_.get(), {}, true)) {
      return nccl_ha::fail(
          Errc::system, fmt::format("RDMA device {}: cannot post a receive", ends_.info().device));
    }
  }
  return {};
}

void VerbsPath::query_ece() {
  ibv_ece ece{};
  const bool known = env_.device->library().queue_pair.query_ece(pair_.get(), &ece) == 0;
  ends_.set_local_ece(known ? std::optional(ece) : std::nullopt);
}

Result<void> VerbsPath::connect(std::span<const std::byte> peer_address) {
  const auto peer = decode_address(peer_address);
  if (!peer) {
    return nccl_ha::fail(
        Errc::invalid_argument,
        "the peer's RDMA address is malformed; do both hosts run the same nccl-ha?");
  }
  if (state_ != PathState::idle) {
    return nccl_ha::fail(Errc::invalid_usage, "connect: the path was connected before");
  }
  if (auto set = ends_.set_peer(*peer); !set) {
    return set;
  }
  const bool patient = options_.connect_limit > Duration(0);
  handshake_.begin(patient ? options_.connect_limit : env_.options.connect_timeout);
  if (!patient) {
    return make_ready();
  }
  // Others have work to do meanwhile, and the peer may well be out of reach.
  state_ = PathState::connecting;
  // The peer's device is told before it receives, so the passive side's word waits for that.
  ece_open_ = !options_.active && both_know_ece();
  const auto way = ends_.to_peer(options_.traffic_class, options_.service_level);
  handshake_.resolve(env_.device->resolver().ask(way.route));
  check_resolution();
  return {};
}

void VerbsPath::check_resolution() {
  const int result = handshake_.check_resolution();
  if (result == Resolution::open) {
    return;
  }
  auto ready = result == 0 ? make_ready() : Result<void>(ends_.no_way(result));
  if (!ready) {
    break_path(CompletionStatus::retry_exceeded, ready.error());
  }
}

Result<void> VerbsPath::make_ready() {
  const QueuePairCalls& calls = env_.device->library().queue_pair;
  const WireAddress& peer = ends_.peer();
  if (both_know_ece() && calls.set_ece != nullptr) {
    ibv_ece ece{};
    ece.vendor_id = peer.ece_vendor;
    ece.options = peer.ece_options;
    ece.comp_mask = peer.ece_compatibility;
    // Refused: the plain establishment is used.
    static_cast<void>(calls.set_ece(pair_.get(), &ece));
  }
  const auto way = ends_.to_peer(options_.traffic_class, options_.service_level);
  if (auto ready = pair_.make_ready(way, env_.options, ends_); !ready) {
    return ready;
  }
  if (ends_.local().has_ece) {
    query_ece();  // what both sides can do; a peer that connects later takes it from here
  }
  ece_open_ = false;
  if (options_.flushes_max != 0) {
    if (auto flush = flushes_.open(protection(), place_.completions, ends_, env_.options); !flush) {
      return flush;
    }
  }
  state_ = PathState::connecting;
  handshake_.await_probes();
  if (options_.active) {
    post_probes();
  }
  return {};
}

void VerbsPath::on_handshake_timer() {
  NHA_ASSERT(state_ == PathState::connecting, "a handshake goes on after its end");
  if (handshake_.resolving()) {
    const bool waits = ece_open_;
    check_resolution();
    if (waits && address_ready() && state_ == PathState::connecting) {
      owner_->on_path_address(*this);
    }
    return;
  }
  break_path(
      CompletionStatus::retry_exceeded,
      nccl_ha::fail(Errc::timed_out,
                    fmt::format("RDMA device {}: the peer's queue pair {} did not answer in {} ms",
                                ends_.info().device, ends_.peer().queue_pair,
                                handshake_.limit().count() / 1'000'000)));
}

void VerbsPath::post_probes() {
  if (!handshake_.begin_probes()) {
    return;
  }
  for (const auto internal : {Internal::small_probe, Internal::full_probe}) {
    const Gather gather =
        scratch().source(internal == Internal::small_probe ? 16 : ends_.mtu_bytes());
    ibv_send_wr& request = post_internal(internal, std::span(&gather, 1));
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.wr.rdma.remote_addr = ends_.peer().scratch;
    request.wr.rdma.rkey = ends_.peer().scratch_key;
  }
}

void VerbsPath::check_ready() {
  if (state_ != PathState::connecting) {
    return;
  }
  if (handshake_.peer_has_probed() && !options_.active) {
    post_probes();
  }
  if (handshake_.complete()) {
    handshake_.end();
    state_ = PathState::ready;
    env_.queue_state(*this, links_);
  }
}

void VerbsPath::failure_domains(FailureDomains& domains) const {
  using Kind = FailureDomain::Kind;
  domains.push_back({Kind::local_nic, options_.nic});
  if (auto nic = ends_.peer_nic()) {
    domains.push_back({Kind::remote_nic, std::move(*nic)});
  }
}

void VerbsPath::report_state() {
  const Error error = error_;
  owner_->on_path_state(*this, state_, error);
}

void VerbsPath::fail(const Error& why) {
  if (state_ != PathState::error) {
    break_path(CompletionStatus::flushed, why);
  }
}

void VerbsPath::break_for(const char* what, int error) {
  break_path(
      CompletionStatus::device_fault,
      nccl_ha::fail(Errc::system,
                    fmt::format("RDMA device {}: cannot {}", ends_.info().device, what), error));
}

void VerbsPath::break_path(CompletionStatus cause, const Error& why) {
  if (state_ == PathState::error) {
    return;
  }
  state_ = PathState::error;
  error_ = why;
  cause_ = cause;
  ece_open_ = false;
  handshake_.end();
  sends_.stop();
  receives_.stop();
  fence_.begin(returned());
  for (QueuePair* pair : {&pair_, &flushes_.pair()}) {
    const int error = pair->get() == nullptr ? 0 : pair->stop();
    if (error != 0) {
      NHA_LOG_INFO("RDMA device {}: queue pair {} does not go into error: {}", ends_.info().device,
                   pair->get()->qp_num, std::strerror(error));
      fence_.stop_waiting();
    }
  }
  env_.queue_state(*this, links_);
  env_.add_fence(*this);
}

bool VerbsPath::all_returned() const {
  return sends_.all_returned() && receives_.all_returned() && flushes_.empty();
}

void VerbsPath::move_fence() {
  const Fence::Outcome outcome = fence_.move(all_returned());
  Destroyer& destroyer = env_.device->destroyer();
  if (outcome == Fence::Outcome::must_ask) {
    fence_.confirm(destroyer.ask());
  } else if (outcome == Fence::Outcome::must_destroy) {
    fence_.await(destroyer.destroy({pair_.release(), flushes_.pair().release()}, domain_));
  } else {
    on_fence(outcome);
  }
}

void VerbsPath::on_fence(Fence::Outcome outcome) {
  if (outcome == Fence::Outcome::closed) {
    on_fenced();
    take_back();
  } else if (outcome == Fence::Outcome::stuck) {
    // What is outstanding stays so: nobody knows what may still be written.
    ++env_.statistics.fences_unproven;
    owner_->on_fence_stuck(
        *this, nccl_ha::fail(
                   Errc::remote,
                   fmt::format("RDMA device {}: nothing proves that queue pair {} is at its end, "
                               "and the device may still write into memory that is to be used "
                               "again: see the kernel's log; it was given up because: {}",
                               ends_.info().device, ends_.local().queue_pair, error_.message()),
                   fence_.error()));
  }
}

void VerbsPath::on_fenced() {
  const char* proof = "";
  switch (fence_.proof()) {
    case FenceProof::none:
      NHA_ASSERT(false, "a fence closes with a proof");
      break;
    case FenceProof::returned:
      ++env_.statistics.fences_by_flush;
      proof = "all work came back";
      break;
    case FenceProof::destroyed:
      ++env_.statistics.fences_by_destroy;
      proof = "the queue pair was destroyed";
      break;
    case FenceProof::gone:
      ++env_.statistics.fences_by_removal;
      proof = "the kernel has taken the device away";
      break;
  }
  NHA_LOG_INFO(
      "RDMA device {}: queue pair {} is fenced after {:.1f} ms, in {:.1f} of which this process "
      "did not run: {}",
      ends_.info().device, ends_.local().queue_pair,
      static_cast<double>(fence_.took().count()) / 1e6,
      static_cast<double>(fence_.lost().count()) / 1e6, proof);
}

/// The rest, of which no completion tells, in posting order.
void VerbsPath::take_back() {
  while (!sends_.empty()) {
    complete_send(CompletionStatus::flushed);
  }
  Completion completion;
  completion.path = this;
  completion.status = receives_.left();
  while (!receives_.empty()) {
    const ReceiveRing::Slot slot = receives_.pop();
    if (!slot.internal) {
      completion.id = slot.id;
      completion.kind = CompletionKind::receive;
      owner_->on_completion(completion);
    }
  }
  completion.status = CompletionStatus::flushed;
  while (!flushes_.empty()) {
    completion.id = flushes_.pop();
    completion.kind = CompletionKind::flush;
    owner_->on_completion(completion);
  }
}

}  // namespace nccl_ha::fabric::verbs
