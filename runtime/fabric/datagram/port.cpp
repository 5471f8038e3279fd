#include "runtime/fabric/datagram/port.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

constexpr size_t command_receives = 16;
constexpr size_t data_receives = 4;

// A look at sockets enters the kernel, which costs as much as a small message over RDMA.  Where all
// paths only stand by and nothing comes, they are left alone for so long.
constexpr Duration backed_off_gap = std::chrono::milliseconds(1);

}  // namespace

DatagramPort::DatagramPort(std::unique_ptr<PacketIo> io, const DatagramOptions& options,
                           const Environment& environment, uint32_t interface_mtu)
    : env_(environment, options, std::move(io), interface_mtu, *this) {
  env_.memory->attach(&env_.guard.guard());
  gathers_ = true;
}

DatagramPort::~DatagramPort() {
  NHA_ASSERT(env_.paths.size() == 0, "a datagram port was destroyed before its paths");
  env_.memory->detach(&env_.guard.guard());
}

Result<std::unique_ptr<Path>> DatagramPort::create_path(const PathOptions& options,
                                                        PathOwner* owner) {
  if (options.writes_max == 0 || options.writes_max > 65536 || options.receives_max > 65536) {
    return fail(Errc::invalid_argument, "path options: 1..65536 writes and 0..65536 receives");
  }
  const auto id = env_.paths.next_id(*env_.secrets);
  if (!id) {
    return fail(Errc::no_memory, "datagram port: too many paths");
  }
  return std::unique_ptr<Path>(std::make_unique<DatagramPath>(env_, options, owner, *id));
}

inline unsigned DatagramPort::progress_receives(PacketIo::Channels waiting, bool was_backed_off) {
  const GuardScope guard(env_.guard);
  first_packet_ = true;
  const auto small = waiting[0] ? static_cast<unsigned>(env_.stage.io().receive(
                                      Channel::command, *this, command_receives))
                                : 0U;
  first_packet_ = false;
  unsigned work = small;
  // Tiny messages first: when some came, bulk data waits for the next pass, but not for ever.
  // While none is under way, every other pass does, and tiny messages are seen the sooner.
  if (was_backed_off ? waiting[1]
      : data_busy_   ? small == 0 || (pass_ & 3U) == 0
                     : (pass_ & 1U) == 0) {
    const auto bulk =
        static_cast<unsigned>(env_.stage.io().receive(Channel::data, *this, data_receives));
    data_busy_ = bulk != 0;
    work += bulk;
  }
  work += static_cast<unsigned>(env_.hotel.evict(env_.now, [](Room& room) {
    auto& segment = reinterpret_cast<Segment&>(room);  // the room is the segment's first member
    segment.path->on_evicted(segment);
  }));
  return work;
}

unsigned DatagramPort::poll(Clock& time) {
  const Instant now = time.now();
  // One call tells of both sockets.  What was posted meanwhile has marked it active.
  PacketIo::Channels waiting{true, true};
  if (backed_off()) {
    if (now < poll_again_at_) {
      return 0;
    }
    waiting = env_.stage.io().waiting();
  }
  const bool was_backed_off = backed_off();
  env_.now = now;
  unsigned work = 0;
  ++pass_;
  env_.stage.io().tick(now);
  work += progress_sends();
  work += progress_receives(waiting, was_backed_off);
  work += dispatch();
  if (env_.acks_due) {
    env_.acks_due = false;
    work += progress_sends();
  }
  back_off_if_idle();
  return work;
}

unsigned DatagramPort::push(Clock& time) {
  const Instant now = time.now();
  env_.now = now;
  env_.stage.io().tick(now);
  return progress_sends();
}

inline void DatagramPort::back_off_if_idle() {
  back_off(false);
  if (!env_.paths.only_fallbacks()) [[likely]] {
    return;
  }
  if (env_.activity.active(env_.now) || !nothing_waits()) {
    return;
  }
  // For heartbeats, and their acknowledgements, nobody waits but timers.  Nothing else comes
  // that could take an acknowledgement along.
  acknowledge_all();
  back_off(nothing_waits());
  poll_again_at_ = env_.now + backed_off_gap;
  if (const auto deadline = next_deadline()) {
    poll_again_at_ = std::min(poll_again_at_, *deadline);
  }
}

void DatagramPort::acknowledge_all() {
  if (env_.acks.first() == nullptr) {
    return;
  }
  while (env_.acks.first() != nullptr) {
    env_.acks.first()->path.send_ack();  // takes itself off the list
  }
  env_.flush_all();
}

Duration DatagramPort::max_poll_gap() const {
  const bool stands_by = env_.paths.only_fallbacks() && !env_.activity.active(env_.now);
  return stands_by ? std::chrono::milliseconds(10) : Poller::max_poll_gap();
}

std::optional<Instant> DatagramPort::next_deadline() {
  std::optional<Instant> deadline;
  if (env_.hotel.guests() != 0) {
    deadline = env_.hotel.sleep_until();
  }
  const AckLink* owed = env_.acks.first();
  if (owed != nullptr && (!deadline || owed->deadline < *deadline)) {
    deadline = owed->deadline;
  }
  return deadline;
}

size_t DatagramPort::wait_fds(std::span<int> out) const {
  size_t count = 0;
  for (const Channel channel : {Channel::command, Channel::data}) {
    const int fd = env_.stage.io().wait_fd(channel);
    if (fd >= 0 && count < out.size()) {
      out[count++] = fd;
    }
  }
  return count;
}

bool DatagramPort::nothing_waits() const {
  return env_.ready.empty() && env_.resends_wait() && env_.acks.urgent().empty() &&
         env_.completions.empty() && env_.stage.empty();
}

bool DatagramPort::prepare_sleep() {
  wake();  // by what arrives, which is to be looked at
  const bool hears = env_.stage.io().wait_fd(Channel::data) >= 0;
  waits_changed_ = std::exchange(hears_, hears) != hears || waits_changed_;
  return nothing_waits() && env_.stage.io().prepare_sleep();
}

DatagramPath* DatagramPort::find(const FrameHeader& header) {
  DatagramPath* path = env_.paths.at_place_of(header.path);
  if (path == nullptr || path->id() != header.path) {
    ++env_.statistics.unknown_path;
    return nullptr;
  }
  if (path->token() != header.token) {
    ++env_.statistics.bad_token;
    return nullptr;
  }
  return path;
}

void DatagramPort::packet(std::span<const std::byte> datagram) {
  ++env_.statistics.datagrams_received;
  bool first = first_packet_;
  first_packet_ = false;
  while (!datagram.empty()) {
    const auto header = decode(datagram, datagram.size());
    if (!header) {
      ++env_.statistics.malformed;
      return;
    }
    const size_t bytes = header->frame_bytes();
    DatagramPath* path = find(*header);
    std::optional payload = datagram.subspan(header_bytes, header->payload_length);
    if (path != nullptr && path->sealed()) [[unlikely]] {
      payload = path->open(*header, datagram.first(bytes));
    }
    if (path != nullptr && payload) {
      path->on_frame(*header, *payload);
      // Fast receive: the first packet of a pass, in order and tiny, is handed on before any of
      // the bookkeeping that follows it (acknowledgements, statistics, other packets).
      if (first && header->type == FrameType::put && env_.completions.count() == 1 &&
          env_.guard.depth() == 1) {
        path->on_fast_receive();
      }
    }
    first = false;
    datagram = datagram.subspan(bytes);
  }
}

Placement DatagramPort::place(std::span<const std::byte> head, size_t total, size_t segment) {
  const size_t first_bytes = std::min(segment, total);
  const auto header = decode(head, first_bytes);
  if (!header || header->type != FrameType::put || header->payload_length == 0 ||
      header_bytes + header->payload_length != first_bytes) {
    return {};
  }
  // A reader who polls may see no wrong guess, and no end of a line before its beginning: the
  // kernel copies in any order.
  if ((header->flags & flag_no_speculation) != 0) {
    return {};
  }
  DatagramPath* path = find(*header);
  // Of a sealed frame nothing is anywhere before its tag was looked at.
  if (path == nullptr || path->sealed() || !path->takes(header->sequence)) {
    return {};
  }
  const size_t bytes = placement_.plan(*header, total, segment,
                                       [&](uint32_t sequence) { return path->takes(sequence); });
  std::byte* to = env_.memory->resolve(header->key, path->domain(),
                                       header->address + header->fragment_offset, bytes);
  return to == nullptr ? Placement{} : placement_.begin(to);
}

void DatagramPort::placed(size_t total) {
  (void)total;
  ++env_.statistics.datagrams_received;
  const auto first = placement_.first();
  DatagramPath* path = first ? find(*first) : nullptr;
  placement_.end(
      [&](const FrameHeader& header, std::span<const std::byte> payload) {
        const bool accepted = path != nullptr && path->takes(header.sequence);
        if (accepted) {
          path->on_placed(header, payload);
        }
        return accepted;
      },
      [&](std::span<const std::byte> frame) { packet(frame); });
}

unsigned DatagramPort::dispatch() {
  unsigned count = 0;
  // Owners may post, destroy paths and cause further completions from here.
  while (env_.completions.count() != 0) {
    const Completion completion = env_.completions.pop();
    ++count;
    if (completion.path != nullptr) {
      static_cast<DatagramPath*>(completion.path)->report(completion);
    }
  }
  std::vector<DatagramPath*>& states = env_.completions.states();
  for (size_t i = 0; i < states.size(); ++i) {
    ++count;
    if (states[i] != nullptr) {
      states[i]->report_state();
    }
  }
  states.clear();
  return count;
}

}  // namespace nccl_ha::fabric
