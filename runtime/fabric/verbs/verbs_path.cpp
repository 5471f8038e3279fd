// Making, connecting and breaking an RC queue pair.
#include "runtime/fabric/verbs/verbs_path.h"

#include <fmt/format.h>

#include <cerrno>
#include <new>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr unsigned packet_sequence_bits = 24;
/// For a command that takes 0.1 ms, and some that are before it.
constexpr Duration stop_limit = std::chrono::milliseconds(10);
/// Soft-RoCE destroys a queue pair when its interface has let go of the packets.
constexpr Duration destroy_limit = std::chrono::seconds(10);
/// Whoever has other devices waits for no queue pair of one that is in a command for so long.
constexpr Duration opening_patience = std::chrono::seconds(2);
/// Between two looks whether that is so.
constexpr Duration look_after = std::chrono::milliseconds(500);

}  // namespace

VerbsPath::VerbsPath(PathEnvironment& environment, const PathOptions& options, PathOwner* owner,
                     const PathPlace& place, const GidPreference& gid,
                     std::shared_ptr<CompletionQueue> completions)
    : env_(environment),
      owner_(owner),
      options_(options),
      place_(place),
      ends_(environment.info),
      traits_(environment.options.traits(
          environment.info.link == LinkLayer::infiniband,
          environment.device->peer_memory() || environment.device->dmabuf(),
          environment.info.speed_mbps)),
      write_max_(environment.info.message_max),
      handshake_(environment),
      pairs_(std::make_shared<PathPairs>(*environment.device, plan(gid, std::move(completions)))),
      flushes_(place.ids(WorkId::Lane::flush), options.flushes_max),
      sends_(place.ids(WorkId::Lane::send), options.writes_max),
      receives_(place.ids(WorkId::Lane::receive), options.receives_max, options.receives_spare),
      fence_(environment, environment.options, environment.device->health,
             &environment.device->conductor()) {
  handshake_.bind([](void* self) { static_cast<VerbsPath*>(self)->on_handshake_timer(); }, this);
  fence_.bind(
      [](void* self) {
        auto& path = *static_cast<VerbsPath*>(self);
        path.on_fence(path.fence_.check(path.returned()));
      },
      this);
  for (uint32_t i = 0; i < ReceiveRing::probes; ++i) {
    receives_.hold(true);  // the peer's probes meet the first ones
  }
  handshake_.begin(connect_limit());
  handshake_.await(look_after);
  order(Conductor::Rank::make, DoneList::Step::opened, [](PathPairs& pairs) { pairs.open(); });
}

VerbsPath::~VerbsPath() {
  env_.table.remove(*this);
  pairs_->leave();
  Conductor& conductor = env_.device->conductor();
  try {
    conductor.add(
        Conductor::Rank::end, [pairs = pairs_] { static_cast<void>(pairs->destroy()); }, {},
        destroy_limit);
  } catch (const std::bad_alloc&) {
    return;  // by this thread then, or by a command that has them
  }
}

PathPairs::Plan VerbsPath::plan(const GidPreference& gid,
                                std::shared_ptr<CompletionQueue> queue) const {
  PathPairs::Plan plan;
  plan.completions = std::move(queue);
  plan.entries = place_.entries;
  plan.port = env_.info.port;
  plan.gid = gid;
  plan.options = env_.options;
  plan.sends_max = options_.writes_max;
  plan.receives_max = options_.receives_max;
  plan.flushes_max = options_.flushes_max;
  if (options_.own_domain) {
    plan.domain = options_.domain;
  }
  plan.memory = options_.memory;
  plan.packet_sequence = static_cast<uint32_t>(env_.secrets->bits(packet_sequence_bits));
  return plan;
}

template <class Command>
void VerbsPath::order(Conductor::Rank rank, DoneList::Step step, Command command) {
  env_.device->conductor().add(
      rank, [pairs = pairs_, command] { command(*pairs); },
      [done = env_.done, what = DoneList::Done{place_.slot, place_.generation, step}] {
        done->add(what);
      });
}

template <class Command>
std::shared_ptr<const Answer> VerbsPath::order_end(Command command, Duration allowed) {
  struct Kept {
    std::shared_ptr<PathPairs> pairs;
    int result = ENOMEM;  // where the command ends for want of memory
  };
  auto answer = std::make_shared<Answer>();
  auto kept = std::make_shared<Kept>(Kept{pairs_});
  env_.device->conductor().add(
      Conductor::Rank::stop, [kept, command] { kept->result = command(*kept->pairs); },
      [kept, answer, done = env_.done,
       what = DoneList::Done{place_.slot, place_.generation, DoneList::Step::ending}] {
        answer->result.store(kept->result, std::memory_order_release);
        done->add(what);
      },
      allowed);
  return answer;
}

Duration VerbsPath::connect_limit() const {
  return options_.connect_limit > Duration(0) ? options_.connect_limit
                                              : env_.options.connect_timeout;
}

void VerbsPath::on_done(DoneList::Step step) {
  if (state_ == PathState::error) {
    return;
  }
  if (step == DoneList::Step::opened) {
    on_opened();
  } else if (step == DoneList::Step::ready) {
    on_ready();
  }
}

void VerbsPath::on_opened() {
  handshake_.end();
  const auto opened = pairs_->take_opened();
  if (!opened) {
    break_path(CompletionStatus::device_fault, opened.error());
    return;
  }
  ends_.take_local(opened->ends);
  scratch_ = opened->scratch;
  inline_max_ = opened->inline_max;
  pair_ = opened->pair;
  completions_ = opened->completions;
  post_held_receives();
  if (state_ == PathState::connecting) {
    handshake_.begin(connect_limit());
    resolve();
  }
  if (state_ != PathState::error && address_ready()) {
    owner_->on_path_address(*this);
  }
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
  state_ = PathState::connecting;
  if (pair_ != nullptr) {
    handshake_.begin(connect_limit());
    resolve();
  }
  return {};
}

void VerbsPath::resolve() {
  // The peer's device is told before it receives, so the passive side's word waits for that.
  ece_open_ = !options_.active && ends_.both_know_ece();
  const auto way = ends_.to_peer(options_.traffic_class, options_.service_level);
  handshake_.resolve(env_.device->resolver().ask(way.route));
  check_resolution();
}

void VerbsPath::check_resolution() {
  const int result = handshake_.check_resolution();
  if (result == Resolution::open) {
    return;
  }
  if (result != 0) {
    break_path(CompletionStatus::retry_exceeded, ends_.no_way(result));
    return;
  }
  handshake_.await();
  order(Conductor::Rank::make, DoneList::Step::ready,
        [ends = ends_, way = ends_.to_peer(options_.traffic_class, options_.service_level)](
            PathPairs& pairs) { pairs.make_ready(ends, way); });
}

void VerbsPath::on_ready() {
  const auto ready = pairs_->take_ready();
  if (!ready) {
    break_path(CompletionStatus::retry_exceeded, ready.error());
    return;
  }
  if (ends_.local().has_ece) {
    ends_.set_local_ece(ready->ece);  // a peer that connects later takes it from here
  }
  if (ready->flush != nullptr) {
    flushes_.open(ready->flush);
  }
  connected_ = true;
  if (options_.active) {
    post_probes();
  }
  check_ready();
  if (std::exchange(ece_open_, false)) {
    owner_->on_path_address(*this);
  }
}

void VerbsPath::on_handshake_timer() {
  NHA_ASSERT(state_ != PathState::error, "a handshake goes on after its end");
  if (handshake_.resolving()) {
    check_resolution();
    return;
  }
  const bool opening = pair_ == nullptr;
  const bool hangs = opening && options_.connect_limit > Duration(0) &&
                     env_.device->conductor().busy() >= opening_patience;
  if (!hangs && handshake_.await_on(opening ? look_after : Duration::max())) {
    return;
  }
  const auto limit_ms = (hangs ? opening_patience : handshake_.limit()).count() / 1'000'000;
  const std::string& device = ends_.info().device;
  break_path(
      CompletionStatus::retry_exceeded,
      nccl_ha::fail(
          Errc::timed_out,
          connected_
              ? fmt::format("RDMA device {}: the peer's queue pair {} did not answer in {} ms",
                            device, ends_.peer().queue_pair, limit_ms)
              : fmt::format("RDMA device {}: its firmware did not {} a queue pair in {} ms", device,
                            opening ? "make" : "connect", limit_ms)));
}

void VerbsPath::post_probes() {
  if (!handshake_.begin_probes()) {
    return;
  }
  for (const auto internal : {Internal::small_probe, Internal::full_probe}) {
    const Gather gather =
        scratch_->source(internal == Internal::small_probe ? 16 : ends_.mtu_bytes());
    ibv_send_wr& request = post_internal(internal, std::span(&gather, 1));
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.wr.rdma.remote_addr = ends_.peer().scratch;
    request.wr.rdma.rkey = ends_.peer().scratch_key;
  }
}

void VerbsPath::check_ready() {
  if (state_ != PathState::connecting || !connected_) {
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

void VerbsPath::await_stop() {
  if (const auto& stop = fence_.stop()) {
    static_cast<void>(env_.device->conductor().await(*stop, stop_limit));
  }
}

void VerbsPath::abandon() {
  if (state_ == PathState::error && !fence_.closed()) {
    fence_.abandon();
    ++env_.statistics.fences_abandoned;
    NHA_LOG_INFO(
        "RDMA device {}: nothing proves after {:.1f} ms that queue pair {} is at its end: the peer "
        "is to go on without that",
        ends_.info().device, static_cast<double>(fence_.took().count()) / 1e6,
        ends_.local().queue_pair);
    take_back();
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
  if (pair_ == nullptr) {
    fence_.begin_unused();
  } else {
    std::shared_ptr<const Answer> stop;
    try {
      stop = order_end([](PathPairs& pairs) { return pairs.stop(); });
    } catch (const std::bad_alloc&) {
      stop.reset();  // the fence has the queue pair destroyed when there is memory
    }
    fence_.begin(returned(), std::move(stop));
  }
  env_.queue_state(*this, links_);
  env_.add_fence(*this);
}

bool VerbsPath::all_returned() const {
  return sends_.all_returned() && receives_.all_returned() && flushes_.empty();
}

void VerbsPath::move_fence() {
  fence_.look_for_life(returned());
  const Fence::Outcome outcome = fence_.move(all_returned());
  Conductor& conductor = env_.device->conductor();
  if (outcome == Fence::Outcome::must_ask) {
    fence_.confirm(conductor.ask());
  } else if (outcome == Fence::Outcome::must_destroy) {
    fence_.await(order_end(
        [&conductor](PathPairs& pairs) {
          const int error = pairs.destroy();
          return error != 0 ? error : conductor.question();
        },
        destroy_limit));
  } else {
    on_fence(outcome);
  }
}

void VerbsPath::on_fence(Fence::Outcome outcome) {
  if (outcome == Fence::Outcome::closed) {
    on_fenced();
    if (fence_.abandoned()) {
      owner_->on_fence_proven(*this);
    } else {
      take_back();
    }
  } else if (outcome == Fence::Outcome::late) {
    owner_->on_fence_late(*this);
  } else if (outcome == Fence::Outcome::stuck && !fence_.abandoned()) {
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
  if (pair_ == nullptr) {
    return;  // there was nothing to wait for
  }
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
    case FenceProof::silence:
      ++env_.statistics.fences_by_silence;
      proof = "no proof, but the firmware answers nothing any more (HA_NCCL_IB_HUNG_MS)";
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
  completion.kind = CompletionKind::receive_immediate;
  completion.status = receives_.left();
  while (!receives_.empty()) {
    if (!receives_.pop().internal) {
      owner_->on_completion(completion);
    }
  }
  completion.kind = CompletionKind::flush;
  completion.status = CompletionStatus::flushed;
  while (!flushes_.empty()) {
    completion.id = flushes_.pop();
    owner_->on_completion(completion);
  }
}

}  // namespace nccl_ha::fabric::verbs
