#include "tests/rig/sim/rdma.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/data_turn.h"
#include "tests/rig/sim/rdma_objects.h"

namespace nccl_ha::sim {

RdmaNic::RdmaNic(Network& network, Conditions& conditions, uint64_t seed,
                 const std::vector<Ip>& addresses, std::string name, uint32_t number,
                 const DeviceTraits& traits)
    : network_(network),
      conditions_(conditions),
      random_(seed),
      verbs_(~seed),
      memory_(seed ^ 0x5DEECE66D),
      name_(std::move(name)),
      number_(number),
      traits_(traits),
      context_(std::make_unique<Context>()),
      device_(std::make_unique<Device>()) {
  context_->nic = this;
  context_->cmd_fd = -1;
  context_->async_fd = network_.make_event();
  device_->nic = this;
  for (const Ip address : addresses) {
    Port port;
    port.address = address;
    // The subnet manager numbers ports; here by network and host.
    port.lid = static_cast<uint16_t>(1 + ((address >> 16 & 0x3F) << 8 | (address & 0xFF)));
    ports_.push_back(port);
    network_.rdma_[address] = this;
  }
}

RdmaNic::~RdmaNic() {
  for (const Port& port : ports_) {
    const auto its = network_.rdma_.find(port.address);
    if (its != network_.rdma_.end() && its->second == this) {  // none has come in its place
      network_.rdma_.erase(its);
    }
  }
  for (const auto& [number, pair] : pairs_) {
    delete pair;  // those that refused to be destroyed
  }
  close(context_->async_fd);
}

Result<fabric::verbs::UsablePort> RdmaNic::open(const Config& config, const std::string& netdev,
                                                const fabric::verbs::Library& library) {
  auto opened = open_ports(config, std::vector(ports_.size(), netdev), library);
  if (!opened) {
    return opened.error();
  }
  return std::move(opened->front());
}

Result<std::vector<fabric::verbs::UsablePort>> RdmaNic::open_ports(
    const Config& config, std::span<const std::string> netdevs,
    const fabric::verbs::Library& library) {
  auto device = fabric::verbs::Device::open(library, device_.get(), config);
  if (!device) {
    return device.error();
  }
  std::vector<fabric::verbs::UsablePort> opened;
  for (size_t i = 0; i < ports_.size(); ++i) {
    auto info = (*device)->query(static_cast<uint8_t>(i + 1));
    if (!info) {
      return info.error();
    }
    info->netdev = netdevs[i];
    opened.push_back({*device, std::move(*info)});
  }
  return opened;
}

void RdmaNic::report(ibv_event_type type, size_t port) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = static_cast<int>(port + 1);
  events_.push_back(event);
  network_.readable(context_->async_fd);
}

void RdmaNic::set_port(bool up, Ip address) {
  for (size_t i = 0; i < ports_.size(); ++i) {
    Port& port = ports_[i];
    if (port.up != up && !failed_ && (address == 0 || address == port.address)) {
      port.up = up;
      report(up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, i);
    }
  }
}

void RdmaNic::move_gid() {
  for (size_t i = 0; i < ports_.size(); ++i) {
    ports_[i].gid_place = ports_[i].gid_place % 3 + 1;
    report(traits_.infiniband ? IBV_EVENT_LID_CHANGE : IBV_EVENT_GID_CHANGE, i);
  }
}

void RdmaNic::fail_for_good(const Death& death) {
  if (std::exchange(failed_, true)) {
    return;
  }
  death_ = death;
  failed_at_ = network_.now();
  gone_at_ = failed_at_ + death.gone_after;
  if (death.forgets) {
    memory_.lose();
  } else {
    memory_.land(Instant::max());
  }
  // What it has reported is in the host's memory.
  for (CompletionQueue* queue : queues_) {
    conditions_.counts.forgotten +=
        std::erase_if(queue->entries, [&](const CompletionQueue::Entry& entry) {
          return death.forgets && entry.due > network_.now();
        });
    for (CompletionQueue::Entry& entry : queue->entries) {
      entry.due = std::min(entry.due, network_.now());
    }
  }
  for (const auto& [number, pair] : pairs_) {
    pair->ended = pair->state != IBV_QPS_RTR && pair->state != IBV_QPS_RTS && !pair->lags;
  }
  if (!death.hangs && !removing_) {
    report(IBV_EVENT_DEVICE_FATAL, 0);
  }
  network_.at(gone_at_, [this] { vanish(); });
}

std::vector<Ip> RdmaNic::addresses() const {
  std::vector<Ip> all;
  for (const Port& port : ports_) {
    all.push_back(port.address);
  }
  return all;
}

std::unique_ptr<RdmaNic> RdmaNic::successor() {
  NHA_ASSERT(failed_ && network_.now() >= gone_at_, "a device comes back when it is gone");
  auto next = std::make_unique<RdmaNic>(network_, conditions_, random_.next(), addresses(), name_,
                                        number_, traits_);
  next->verbs_.faults = verbs_.faults;
  next->next_pair_ = next_pair_;  // what was sent to one before meets none
  return next;
}

void RdmaNic::take_memory() {
  if (!std::exchange(removing_, true)) {
    memory_.land(Instant::max());
    regions_.clear();  // whoever has made them ends them
  }
}

/// What it had not written by then it never writes.
void RdmaNic::vanish() {
  memory_.lose();
  if (traits_.old_kernel) {
    network_.readable(context_->async_fd);
    return;
  }
  close_channels();
  report(IBV_EVENT_DEVICE_FATAL, 0);
}

/// Each descriptor becomes one of a pipe that nobody writes into: poll() tells that it is over.
void RdmaNic::close_channels() {
  int ends[2] = {-1, -1};
  NHA_ASSERT(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "a simulation has descriptors");
  close(ends[1]);
  for (const ibv_comp_channel* channel : channels_) {
    static_cast<void>(dup3(ends[0], channel->fd, O_CLOEXEC));
  }
  close(ends[0]);
}

/// A failed device has taken it from the network.  Nobody is told, and no state is looked at, but
/// that what has arrived before is not taken twice, and what it took for ended before takes none:
/// a fence that was proven stays so.
void RdmaNic::take_late(const RdmaPacket& packet) {
  const RdmaQueuePair* pair = find(packet.to_pair);
  const bool writes = packet.kind == RdmaPacket::request && !packet.bytes.empty() &&
                      packet.opcode != IBV_WR_SEND && packet.opcode != IBV_WR_SEND_WITH_IMM;
  using Order = RdmaResponder::Order;
  const Region* region =
      pair == nullptr || pair->ended || !writes ||
              pair->responder.order_of(packet.number) == Order::repeated
          ? nullptr
          : find_region(pair->pd, packet.key, packet.remote, packet.bytes.size(), false);
  if (region == nullptr) {
    return;
  }
  ++conditions_.counts.after_death;
  const auto most = static_cast<uint64_t>(death_.writes_for.count());
  const Instant due = network_.now() + Duration(random_.below(most + 1));
  if (due >= std::min(gone_at_, failed_at_ + death_.writes_for)) {
    return;
  }
  memory_.keep(
      {reinterpret_cast<std::byte*>(packet.remote), packet.bytes, packet.to_pair, region->lkey},
      due);
  network_.at(due, [this] { memory_.land(network_.now()); });
}

void RdmaNic::break_datagrams() {
  for (const auto& [number, pair] : pairs_) {
    if (pair->qp_type == IBV_QPT_UD) {
      break_pair(*pair, IBV_WC_WR_FLUSH_ERR);
    }
  }
}

const RdmaNic::Port* RdmaNic::port_of(Ip address) const {
  const auto found = std::find_if(ports_.begin(), ports_.end(),
                                  [&](const Port& port) { return port.address == address; });
  return found == ports_.end() ? nullptr : &*found;
}

/// Of a port anywhere in the world; 0: nobody has it.
Ip RdmaNic::address_of_lid(uint16_t lid) const {
  for (const auto& [address, nic] : network_.rdma_) {
    if (nic->traits_.infiniband && nic->port_of(address)->lid == lid) {
      return address;
    }
  }
  return 0;
}

std::vector<const RdmaQueuePair*> RdmaNic::queue_pairs() const {
  std::vector<const RdmaQueuePair*> all;
  for (const auto& [number, pair] : pairs_) {
    all.push_back(pair);
  }
  return all;
}

RdmaQueuePair* RdmaNic::find(uint32_t number) {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second;
}

RdmaNic::Region* RdmaNic::find_region(const ibv_pd* domain, uint32_t key, uint64_t address,
                                      uint64_t length, bool local) const {
  const auto found = regions_.find(key);
  if (found == regions_.end()) {
    return nullptr;
  }
  Region* region = found->second;
  const auto base = reinterpret_cast<uint64_t>(region->addr);
  const bool inside =
      address >= base && length <= region->length && address - base <= region->length - length;
  return inside && region->pd == domain && (local ? region->lkey : region->rkey) == key ? region
                                                                                        : nullptr;
}

void RdmaNic::break_pair(RdmaQueuePair& pair, ibv_wc_status first) {
  if (pair.state != IBV_QPS_ERR || std::exchange(pair.lags, false)) {
    pair.state = IBV_QPS_ERR;
    set_half_posted(pair, false);
    pair.keeps = verbs_.random().chance(verbs_.faults.keeps_work);
    flush(pair, first);
  }
}

/// As modify_qp to ERR: the responder may take what comes for a while.
void RdmaNic::end_slowly(RdmaQueuePair& pair) {
  const auto most = static_cast<uint64_t>(verbs_.faults.error_lag.count());
  const bool responds = pair.state == IBV_QPS_RTR || pair.state == IBV_QPS_RTS;
  if (pair.state == IBV_QPS_RTS && pair.requester.unanswered(network_.now()) >= stall) {
    ++conditions_.counts.stalled;
  }
  if (most == 0 || !responds || failed_) {
    if (!pair.lags) {
      break_pair(pair, IBV_WC_WR_FLUSH_ERR);
    }
    return;
  }
  pair.state = IBV_QPS_ERR;
  pair.lags = true;
  network_.at(network_.now() + Duration(verbs_.random().below(most + 1)),
              [this, number = pair.qp_num] { end_lag(number); });
}

/// The responder has learned that its queue pair is in error.
void RdmaNic::end_lag(uint32_t number) {
  if (RdmaQueuePair* pair = find(number); pair != nullptr && pair->lags) {
    break_pair(*pair, IBV_WC_WR_FLUSH_ERR);
  }
}

/// Everything comes back, also what nobody asked a completion for; or not.
void RdmaNic::flush(RdmaQueuePair& pair, ibv_wc_status first) {
  const bool at_receiver = first == IBV_WC_LOC_LEN_ERR || first == IBV_WC_LOC_ACCESS_ERR;
  const auto given_back = [&](size_t count) {
    const size_t given = pair.keeps ? verbs_.random().below(count + 1) : count;
    conditions_.counts.kept += count - given;
    return given;
  };
  auto work = pair.requester.take_all();
  work.resize(given_back(work.size()));
  for (const RdmaWork& one : work) {
    ibv_wc done{};
    done.wr_id = one.id;
    done.status = at_receiver ? IBV_WC_WR_FLUSH_ERR : std::exchange(first, IBV_WC_WR_FLUSH_ERR);
    complete(pair, false, done);
  }
  auto receives = pair.responder.take_all();
  receives.resize(given_back(receives.size()));
  for (const RdmaReceive& receive : receives) {
    ibv_wc done{};
    done.wr_id = receive.id;
    done.status = first == IBV_WC_LOC_LEN_ERR ? std::exchange(first, IBV_WC_WR_FLUSH_ERR)
                                              : IBV_WC_WR_FLUSH_ERR;
    complete(pair, true, done);
  }
}

void RdmaNic::complete(RdmaQueuePair& pair, bool receive, ibv_wc& completion) {
  auto& into = *static_cast<CompletionQueue*>(receive ? pair.recv_cq : pair.send_cq);
  if (failed_) {
    return;
  }
  completion.qp_num = pair.qp_num;
  // What it tells of is in memory before, unless that is a GPU's.
  Instant due = network_.now() + Duration(random_.below(1000));
  due = receive ? std::max(due, pair.responder.landed()) : due;
  if (random_.chance(conditions_.late)) {
    ++conditions_.counts.late;
    due += Duration(random_.below(static_cast<uint64_t>(conditions_.latest.count()) + 1));
  }
  Instant& last = receive ? pair.last_receive_done : pair.last_send_done;
  last = due = std::max(due, last);
  if (into.entries.size() >= static_cast<size_t>(into.cqe)) {
    conditions_.violation = fmt::format("{}: a completion queue of {} overran", name_, into.cqe);
    return;
  }
  auto at = into.entries.end();
  while (at != into.entries.begin() && std::prev(at)->due > due) {
    --at;
  }
  into.entries.insert(at, {due, completion});
  network_.stop_at(due);
}

/// Nothing lands for it any more once this returns, and its completions are there, or taken out.
void RdmaNic::release(RdmaQueuePair& pair) {
  set_half_posted(pair, false);
  memory_.land_pair(pair.qp_num);
  for (CompletionQueue* queue : queues_) {
    auto& entries = queue->entries;
    if (verbs_.faults.destroy_takes_completions) {
      std::erase_if(entries,
                    [&](const auto& entry) { return entry.completion.qp_num == pair.qp_num; });
      continue;
    }
    for (CompletionQueue::Entry& entry : entries) {
      if (entry.completion.qp_num == pair.qp_num) {
        entry.due = std::min(entry.due, network_.now());
      }
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& one, const auto& other) { return one.due < other.due; });
  }
  pairs_.erase(pair.qp_num);
}

RdmaNic::Objects RdmaNic::objects() const {
  if (failed_) {
    return {};
  }
  const auto relaxed = std::count_if(regions_.begin(), regions_.end(),
                                     [](const auto& one) { return one.second->relaxed; });
  return {pairs_.size(), regions_.size() / 2, static_cast<size_t>(relaxed) / 2, queues_.size()};
}

int RdmaNic::duplicate(int fd) {
  return call(Verb::duplicate, false) != 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

void RdmaNic::write(RdmaQueuePair& pair, const Region& region, std::byte* to,
                    std::span<const std::byte> bytes) {
  const bool relaxed = verbs_.faults.relaxed && region.relaxed;
  pair.responder.set_landed(memory_.write(
      {to, bytes, pair.qp_num, region.lkey, region.gpu, relaxed, pair.responder.landed()},
      verbs_.faults, network_.now()));
  for (const Instant due : memory_.dues()) {
    network_.at(due, [this] { memory_.land(network_.now()); });
  }
}

/// errno when the call fails, else 0.
int RdmaNic::call(Verb verb, bool may_be_slow) {
  const bool control =
      verb > Verb::create_channel && verb < Verb::post_send && verb != Verb::duplicate;
  NHA_ASSERT(!control || !DataTurn::is_here(), "a control verb holds up a worker");
  int error = verbs_.call(verb);
  if ((failed_ || removing_) && verb <= Verb::make_route && verb != Verb::duplicate) {
    error = EIO;
  }
  if (hangs() && verb >= Verb::create_queue && verb <= Verb::destroy_pair) {
    error = ETIMEDOUT;
    conditions_.waited += gone_at_ - network_.now();
  }
  conditions_.counts.calls_failed += error != 0 ? 1 : 0;
  if (may_be_slow) {
    const Duration time = verbs_.time_of_call();
    conditions_.counts.calls_slow += time > Duration{} ? 1 : 0;
    conditions_.waited += time;
  }
  if (error != 0) {
    errno = error;
  }
  return error;
}

}  // namespace nccl_ha::sim
