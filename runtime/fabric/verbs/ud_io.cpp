#include "runtime/fabric/verbs/ud_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/fabric/verbs/route.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// What the device puts in front of every datagram that it receives (IBTA 11.4.1.2).
constexpr uint32_t route_header_bytes = 40;
/// Both sides of a datagram must have the same key.  The top bit is clear: such keys need no
/// privilege (IBTA 10.2.5).
constexpr uint32_t queue_key = 0x4E48'4100;
constexpr uint32_t command_slots = 1024;
constexpr uint32_t data_slots = 2048;
constexpr uint32_t command_datagram = 1216;
constexpr uint32_t least_mtu = 1024;
constexpr uint32_t wanted_inline = 192;
/// Datagrams that leave with one doorbell, and receives that are posted with one.
constexpr size_t batch = 32;
/// A peer is not asked for again for so long, whether it was found or not.
constexpr auto answer_lasts = std::chrono::seconds(1);
/// Of a handle that has been replaced: its datagrams have left long before.
constexpr auto old_handle_lasts = std::chrono::seconds(10);
/// What a device takes to make two queue pairs, many times over.  Others wait for it.
constexpr auto open_limit = std::chrono::milliseconds(500);

}  // namespace

Error UdIo::cannot(const char* what, int error) const {
  return fail(Errc::system,
              fmt::format("RDMA device {}: cannot {}{}", device_.name(), what, memlock_hint(error)),
              error);
}

Result<std::unique_ptr<UdIo>> UdIo::open(std::shared_ptr<Device> device, const Route& route,
                                         const Options& options) {
  struct Opening {
    std::optional<Result<std::unique_ptr<UdIo>>> io;
    Answer answer;
  };
  auto opening = std::make_shared<Opening>();
  Conductor& conductor = device->conductor();
  conductor.add(
      Conductor::Rank::make,
      [opening, &own = *device, route, options] { opening->io = make(own, route, options); },
      [opening] { opening->answer.result.store(0, std::memory_order_release); });
  if (!conductor.await(opening->answer, open_limit) || !opening->io) {
    return fail(Errc::timed_out, fmt::format("RDMA device {} does not make queue pairs in {} ms",
                                             device->name(), open_limit.count()));
  }
  if (*opening->io) {
    (**opening->io)->keep_ = std::move(device);
  }
  return std::move(*opening->io);
}

Result<std::unique_ptr<UdIo>> UdIo::make(Device& device, const Route& route,
                                         const Options& options) {
  std::unique_ptr<UdIo> io(new UdIo(device, route));
  io->address_changes_ = device.address_changes.load(std::memory_order_acquire);
  io->partition_changes_ = device.partition_changes.load(std::memory_order_acquire);
  auto info = io->device_.query(route.port);
  if (!info) {
    return info.error();
  }
  io->info_ = std::move(*info);
  io->gid_ = select_gid(io->info_.gids, route.gid);
  if (!io->gid_ && io->info_.needs_gid()) {
    return fail(Errc::system, fmt::format("RDMA device {} has no usable GID: give its interface an "
                                          "address, or look at `nccl-ha info`",
                                          io->device_.name()));
  }
  io->mtu_ = io->info_.mtu;
  if (io->mtu_ < least_mtu) {
    return fail(Errc::system, fmt::format("RDMA device {}: its MTU is {}, datagrams need {}",
                                          io->device_.name(), io->mtu_, least_mtu));
  }
  auto opened = io->open_channel(io->channels_[0], command_slots,
                                 std::min(command_datagram, io->mtu_), options);
  if (opened) {
    opened = io->open_channel(io->channels_[1], data_slots, io->mtu_, options);
  }
  if (!opened) {
    return opened.error();
  }
  return io;
}

UdIo::~UdIo() {
  try {
    device_.conductor().add(Conductor::Rank::end, [objects = std::move(objects_)] {});
  } catch (const std::bad_alloc&) {
    return;  // by this thread then, or by a command that has them
  }
}

UdIo::Objects::~Objects() {
  const Library& library = device.library();
  for (const ChannelState& channel : channels) {
    if (channel.qp != nullptr) {
      static_cast<void>(library.queue_pair.destroy(channel.qp));
    }
    if (channel.unacknowledged != 0) {
      library.completion.ack_events(channel.receive_cq, channel.unacknowledged);
    }
    for (ibv_cq* cq : {channel.send_cq, channel.receive_cq}) {
      if (cq != nullptr) {
        static_cast<void>(library.completion.destroy_queue(cq));
      }
    }
    device.close_channel(channel.events);
    for (const Slots* slots : {&channel.out, &channel.in}) {
      if (slots->region.mr != nullptr) {
        device.remove(slots->region, slots->memory);
      }
    }
  }
  for (const Way& way : ways) {
    if (way.handle != nullptr) {
      static_cast<void>(library.address_handle.destroy(way.handle));
    }
  }
  for (const Replaced& old : replaced) {
    static_cast<void>(library.address_handle.destroy(old.handle));
  }
}

Result<void> UdIo::make_slots(Slots& slots, uint32_t count, uint32_t bytes) {
  slots.count = count;
  slots.bytes = (bytes + 63) / 64 * 64;
  slots.memory = std::make_shared<Pages>(size_t{slots.count} * slots.bytes);
  auto region = device_.add(slots.memory->data(), slots.memory->size(), MemoryKind::host);
  if (!region) {
    return region.error();
  }
  slots.region = *region;
  return {};
}

Result<void> UdIo::open_channel(ChannelState& channel, uint32_t slots, uint32_t datagram_bytes,
                                const Options& options) {
  slots = std::min(slots, static_cast<uint32_t>(std::max(device_.attributes().max_qp_wr, 1)));
  if (auto made = make_slots(channel.out, slots, datagram_bytes); !made) {
    return made;
  }
  if (auto made = make_slots(channel.in, slots, datagram_bytes + route_header_bytes); !made) {
    return made;
  }
  auto events = device_.open_channel();
  if (!events) {
    return events.error();
  }
  channel.events = *events;
  const int entries = static_cast<int>(slots);
  channel.send_cq =
      library_.completion.create_queue(device_.context(), entries, nullptr, nullptr, 0);
  channel.receive_cq =
      library_.completion.create_queue(device_.context(), entries, nullptr, channel.events, 0);
  if (channel.send_cq == nullptr || channel.receive_cq == nullptr) {
    return cannot("create a completion queue", errno);
  }
  if (auto made = make_queue_pair(channel, options); !made) {
    return made;
  }
  post_receives(channel);
  return {};
}

Result<void> UdIo::make_queue_pair(ChannelState& channel, const Options& options) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = channel.send_cq;
  attributes.recv_cq = channel.receive_cq;
  attributes.qp_type = IBV_QPT_UD;
  attributes.cap.max_send_wr = channel.out.count;
  attributes.cap.max_recv_wr = channel.in.count;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = wanted_inline;
  channel.qp = library_.queue_pair.create(device_.pd(), &attributes);
  if (channel.qp == nullptr) {
    attributes.cap.max_inline_data = 0;  // not every device has it
    channel.qp = library_.queue_pair.create(device_.pd(), &attributes);
  }
  if (channel.qp == nullptr) {
    return cannot("create a datagram queue pair", errno);
  }
  channel.inline_bytes = attributes.cap.max_inline_data;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.pkey_index = options.pkey_index;
  state.port_num = route_.port;
  state.qkey = queue_key;
  int error = library_.queue_pair.modify(
      channel.qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  if (error == 0) {
    state = {};
    state.qp_state = IBV_QPS_RTR;
    error = library_.queue_pair.modify(channel.qp, &state, IBV_QP_STATE);
  }
  if (error == 0) {
    state = {};
    state.qp_state = IBV_QPS_RTS;
    error = library_.queue_pair.modify(channel.qp, &state, IBV_QP_STATE | IBV_QP_SQ_PSN);
  }
  return error == 0 ? Result<void>() : cannot("make a datagram queue pair ready", error);
}

SocketAddress UdIo::local(Channel channel) const {
  UdAddress own;
  own.lid = info_.lid;
  own.queue_pair = channels_[static_cast<size_t>(channel)].qp->qp_num;
  if (gid_) {
    own.gid = gid_->bytes;
  }
  return SocketAddress::from_ud(own);
}

size_t UdIo::receive_buffer_bytes() const {
  const Slots& in = channels_[static_cast<size_t>(Channel::data)].in;
  return size_t{in.count} * mtu_;
}

int UdIo::wait_fd(Channel channel) const {
  // One that the kernel has closed would wake for ever who sleeps on it.
  return is_lost() ? -1 : channels_[static_cast<size_t>(channel)].events->fd;
}

UdIo::Way& UdIo::find_way(const SocketAddress& to) {
  // Queue pairs of one peer share the way: only GID and LID count.
  const UdAddress& peer = to.ud();
  const auto same = [&](const Way& way) {
    return way.to.ud().lid == peer.lid && way.to.ud().gid == peer.gid;
  };
  if (last_way_ >= ways_.size() || !same(ways_[last_way_])) {
    const auto found = std::find_if(ways_.begin(), ways_.end(), same);
    last_way_ = static_cast<size_t>(found - ways_.begin());
    if (found == ways_.end()) {
      ways_.push_back({to, nullptr, nullptr, {}});
    }
  }
  return ways_[last_way_];
}

ibv_ah_attr UdIo::route_to(const UdAddress& peer) const {
  return route_between(info_, gid_, {peer.lid, peer.gid},
                       {route_.traffic_class, route_.service_level});
}

/// The one that there is carries on until there is an answer.
PacketIo::Egress UdIo::egress(const SocketAddress& peer) {
  Way& way = find_way(peer);
  if (way.handle != nullptr && !way.asked && now_ >= way.retry_at) {
    way.asked = device_.resolver().make_handle(route_to(peer.ud()));
  }
  return {};
}

/// Null: it is not known yet, or there is none.
ibv_ah* UdIo::way_to(const SocketAddress& to) {
  Way& way = find_way(to);
  if (!way.asked && (way.handle != nullptr || now_ < way.retry_at)) [[likely]] {
    return way.handle;
  }
  if (!way.asked) {
    way.asked = device_.resolver().make_handle(route_to(to.ud()));
  }
  if (way.asked->result() != Resolution::open) {
    take_answer(way);
  }
  return way.handle;
}

void UdIo::take_answer(Way& way) {
  const auto asked = std::exchange(way.asked, nullptr);
  const int error = asked->result();
  way.retry_at = now_ + answer_lasts;
  if (error == 0) {
    replace(way, asked->take());
    return;
  }
  const UdAddress& peer = way.to.ud();
  NHA_LOG_WARN_LIMITED("RDMA device {}: no way to {} (LID {}): {}", device_.name(),
                       gid_text(peer.gid), peer.lid, std::strerror(error));
}

/// Those that were replaced long ago end by the conductor.
void UdIo::replace(Way& way, ibv_ah* made) {
  auto& replaced = objects_->replaced;
  if (way.handle != nullptr) {
    replaced.push_back({way.handle, now_});
  }
  way.handle = made;
  const auto recent = std::ranges::find_if(
      replaced, [&](const Objects::Replaced& one) { return now_ - one.at < old_handle_lasts; });
  if (recent != replaced.begin()) {
    std::vector<Objects::Replaced> old(replaced.begin(), recent);
    replaced.erase(replaced.begin(), recent);
    device_.conductor().add(Conductor::Rank::end, [&library = library_, old = std::move(old)] {
      for (const Objects::Replaced& one : old) {
        static_cast<void>(library.address_handle.destroy(one.handle));
      }
    });
  }
}

void UdIo::reclaim(ChannelState& channel) {
  std::array<ibv_wc, batch> completions;
  int got = 0;
  do {
    got = ibv_poll_cq(channel.send_cq, static_cast<int>(batch), completions.data());
    for (int i = 0; i < got; ++i) {
      // Only the last of each batch is signalled; all before it are done as well.
      const ibv_wc& completion = completions[static_cast<size_t>(i)];
      channel.out.done = completion.wr_id + 1;
      if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
        broken_ = true;  // sending ends with the first error (IBTA 10.3.1.7)
        NHA_LOG_WARN_LIMITED("RDMA device {}: a datagram was not sent: {}", device_.name(),
                             library_.completion.status_text(completion.status));
      }
    }
  } while (got == static_cast<int>(batch));
}

size_t UdIo::send(Channel which, std::span<OutDatagram> out) {
  ChannelState& channel = channels_[static_cast<size_t>(which)];
  Slots& slots = channel.out;
  std::array<ibv_send_wr, batch> requests;
  std::array<ibv_sge, batch> gathers;
  size_t done = 0;
  while (done < out.size()) {
    if (slots.count - (slots.posted - slots.done) < batch) {
      reclaim(channel);
    }
    const size_t room = slots.count - static_cast<size_t>(slots.posted - slots.done);
    const size_t now = std::min({out.size() - done, batch, room});
    if (now == 0) {
      return done;
    }
    size_t count = 0;
    for (size_t i = 0; i < now; ++i) {
      const OutDatagram& datagram = out[done + i];
      size_t bytes = 0;
      for (size_t part = 0; part < datagram.part_count; ++part) {
        bytes += datagram.parts[part].iov_len;
      }
      ibv_ah* way = bytes <= slots.bytes && bytes <= mtu_ ? way_to(*datagram.to) : nullptr;
      if (way == nullptr) {
        continue;  // too large or no way: a lost packet
      }
      std::byte* slot = slots.at(slots.posted + count);
      std::byte* at = slot;
      for (size_t part = 0; part < datagram.part_count; ++part) {
        std::memcpy(at, datagram.parts[part].iov_base, datagram.parts[part].iov_len);
        at += datagram.parts[part].iov_len;
      }
      gathers[count] = {reinterpret_cast<uint64_t>(slot), static_cast<uint32_t>(bytes),
                        slots.region.local_key()};
      ibv_send_wr& request = requests[count];
      request = {};
      request.wr_id = slots.posted + count;
      request.sg_list = &gathers[count];
      request.num_sge = 1;
      request.opcode = IBV_WR_SEND;
      request.send_flags = bytes <= channel.inline_bytes ? IBV_SEND_INLINE : 0;
      request.wr.ud.ah = way;
      request.wr.ud.remote_qpn = datagram.to->ud().queue_pair;
      request.wr.ud.remote_qkey = queue_key;
      if (count > 0) {
        requests[count - 1].next = &request;
      }
      ++count;
    }
    if (count > 0) {
      requests[count - 1].send_flags |= IBV_SEND_SIGNALED;
      ibv_send_wr* bad = nullptr;
      if (const int error = ibv_post_send(channel.qp, requests.data(), &bad); error != 0) {
        // The queue pair is broken or the driver's queue full: lost packets.  Those before `bad`
        // were taken without a signal, which the next batch's will cover.
        NHA_LOG_WARN_LIMITED("RDMA device {}: sending datagrams failed: {}", device_.name(),
                             std::strerror(error));
        count = bad == nullptr ? count : static_cast<size_t>(bad - requests.data());
      }
      slots.posted += count;
    }
    done += now;
  }
  return done;
}

void UdIo::post_receives(ChannelState& channel) {
  Slots& slots = channel.in;
  while (slots.posted - slots.done + batch <= slots.count) {
    std::array<ibv_recv_wr, batch> requests;
    std::array<ibv_sge, batch> places;
    for (size_t i = 0; i < batch; ++i) {
      places[i] = {reinterpret_cast<uint64_t>(slots.at(slots.posted + i)), slots.bytes,
                   slots.region.local_key()};
      requests[i] = {};
      requests[i].wr_id = slots.posted + i;
      requests[i].sg_list = &places[i];
      requests[i].num_sge = 1;
      requests[i].next = i + 1 < batch ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(channel.qp, requests.data(), &bad); error != 0) {
      NHA_LOG_WARN_LIMITED("RDMA device {}: posting receives failed: {}", device_.name(),
                           std::strerror(error));
      slots.posted += bad == nullptr ? 0 : static_cast<uint64_t>(bad - requests.data());
      return;
    }
    slots.posted += batch;
  }
}

size_t UdIo::take(ChannelState& channel, std::span<ibv_wc> out) {
  size_t count = 0;
  if (channel.has_early) {
    channel.has_early = false;
    out[count++] = channel.early;
  }
  const int got =
      ibv_poll_cq(channel.receive_cq, static_cast<int>(out.size() - count), out.data() + count);
  return count + static_cast<size_t>(std::max(got, 0));
}

size_t UdIo::receive(Channel which, PacketSink& sink, size_t limit) {
  ChannelState& channel = channels_[static_cast<size_t>(which)];
  std::array<ibv_wc, batch> completions;
  const size_t count = take(channel, std::span(completions).first(std::min(limit, batch)));
  for (size_t i = 0; i < count; ++i) {
    deliver(channel, completions[i], sink);
  }
  if (count != 0 && !broken_) {
    post_receives(channel);
  }
  return count;
}

void UdIo::deliver(ChannelState& channel, const ibv_wc& completion, PacketSink& sink) {
  // Receives complete in the order of their posts.
  ++channel.in.done;
  broken_ = broken_ || completion.status == IBV_WC_WR_FLUSH_ERR;
  if (completion.status != IBV_WC_SUCCESS || completion.byte_len < route_header_bytes) {
    return;
  }
  const std::span<const std::byte> datagram(
      channel.in.at(completion.wr_id) + route_header_bytes,
      std::min(completion.byte_len, channel.in.bytes) - route_header_bytes);
  if (datagram.empty()) {
    return;
  }
  const Placement placement = sink.place(datagram, datagram.size(), datagram.size());
  if (placement.part_count == 0) {
    sink.packet(datagram);
    return;
  }
  size_t offset = 0;
  for (size_t i = 0; i < placement.part_count; ++i) {
    const iovec& part = placement.parts[i];
    const size_t bytes = std::min(part.iov_len, datagram.size() - offset);
    std::memcpy(part.iov_base, datagram.data() + offset, bytes);
    offset += bytes;
  }
  sink.placed(datagram.size());
}

void UdIo::take_events(ChannelState& channel) {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (library_.completion.get_event(channel.events, &cq, &context) == 0) {
    // Acknowledging takes a lock, so it is done in bundles.
    if (++channel.unacknowledged == 1024) {
      library_.completion.ack_events(cq, channel.unacknowledged);
      channel.unacknowledged = 0;
    }
  }
}

/// An event says that something of the device has changed, and most change nothing here.
void UdIo::check_addresses() {
  if (check_ && check_->answer.over()) {
    moved_ = moved_ || !check_->answer.confirmed();
    address_changes_ = check_->changes;
    check_.reset();
  }
  const uint64_t changes = device_.address_changes.load(std::memory_order_acquire);
  if (moved_ || check_ || changes == address_changes_) [[likely]] {
    return;
  }
  check_ = std::make_shared<Check>();
  check_->changes = changes;
  device_.conductor().add(
      Conductor::Rank::make,
      [check = check_, &device = device_, route = route_, lid = info_.lid, gid = gid_] {
        const auto info = device.query(route.port);
        const auto now = info ? select_gid(info->gids, route.gid) : std::nullopt;
        const bool same = info && info->lid == lid && now.has_value() == gid.has_value() &&
                          (!now || (now->index == gid->index && now->bytes == gid->bytes));
        check->result = same ? 0 : EADDRNOTAVAIL;
      },
      [check = check_] { check->answer.result.store(check->result, std::memory_order_release); });
}

void UdIo::tick(Instant now) {
  now_ = now;
  check_addresses();
  if (armed_) {
    armed_ = false;
    for (ChannelState& channel : channels_) {
      take_events(channel);
    }
  }
}

bool UdIo::broken() {
  for (ChannelState& channel : channels_) {
    reclaim(channel);  // else it is looked at only when room is needed
  }
  check_addresses();
  return broken_ || moved_ ||
         device_.address_changes.load(std::memory_order_acquire) != address_changes_ ||
         device_.partition_changes.load(std::memory_order_acquire) != partition_changes_;
}

bool UdIo::prepare_sleep() {
  armed_ = true;
  bool idle = true;
  for (ChannelState& channel : channels_) {
    if (!is_lost() && ibv_req_notify_cq(channel.receive_cq, 0) != 0) {
      return false;
    }
    // What came before the request makes no event: one more look.
    if (!channel.has_early) {
      channel.has_early = ibv_poll_cq(channel.receive_cq, 1, &channel.early) == 1;
    }
    idle = idle && !channel.has_early;
  }
  return idle;
}

}  // namespace nccl_ha::fabric::verbs
