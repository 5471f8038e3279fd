#include "runtime/fabric/datagram/port.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/mutation.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

constexpr uint32_t index_bits = 20;
constexpr uint32_t index_mask = (1U << index_bits) - 1;
constexpr size_t command_receives = 16;
constexpr size_t data_receives = 4;
constexpr size_t scratch_bytes = 65536;

// A look at sockets enters the kernel, which costs as much as a small message over RDMA.  Where all
// paths only stand by and nothing comes, they are left alone for so long.
constexpr Duration doze_time = std::chrono::milliseconds(1);

}  // namespace

DatagramPort::DatagramPort(std::unique_ptr<PacketIo> io, const DatagramOptions& options,
                           const Environment& environment, uint32_t interface_mtu)
    : env_(environment, options, std::move(io), interface_mtu, *this, *this),
      scratch_(scratch_bytes) {
  env_.memory->attach(&env_.guard.guard());
}

DatagramPort::~DatagramPort() {
  NHA_ASSERT(live_paths_ == 0, "a datagram port was destroyed before its paths");
  env_.memory->detach(&env_.guard.guard());
}

Result<std::unique_ptr<Path>> DatagramPort::create_path(const PathOptions& options,
                                                        PathOwner* owner) {
  if (options.writes_max == 0 || options.writes_max > 65536 || options.receives_max > 65536) {
    return fail(Errc::invalid_argument, "path options: 1..65536 writes and 0..65536 receives");
  }
  uint32_t index = 0;
  if (!free_paths_.empty()) {
    index = free_paths_.front();
    free_paths_.erase(free_paths_.begin());
  } else if (paths_.size() <= index_mask) {
    index = static_cast<uint32_t>(paths_.size());
    paths_.push_back(nullptr);
    generations_.push_back(static_cast<uint16_t>(env_.random->below(4096)));
  } else {
    return fail(Errc::no_memory, "datagram port: too many paths");
  }
  generations_[index] = static_cast<uint16_t>((generations_[index] + 1) & 4095);
  const uint32_t id = (static_cast<uint32_t>(generations_[index]) << index_bits) | index;
  auto path = std::make_unique<DatagramPath>(env_, options, owner, id);
  paths_[index] = path.get();
  ++live_paths_;
  fallback_paths_ += options.fallback ? 1 : 0;
  wake();
  env_.completions.reserve(path->completions_max());
  return std::unique_ptr<Path>(std::move(path));
}

void DatagramPort::remove(DatagramPath& path) {
  env_.flush_all();  // staged frames point into the path
  const uint32_t index = path.id() & index_mask;
  paths_[index] = nullptr;
  free_paths_.push_back(index);
  --live_paths_;
  fallback_paths_ -= path.fallback() ? 1 : 0;
  env_.completions.forget(path, &path, path.completions_max());
  env_.acks.forget(path.links());
  env_.ready.remove(path.links());
  env_.resends.forget(path);
  if (place_path_ == &path) {
    place_path_ = nullptr;
  }
}

unsigned DatagramPort::poll(Clock& time) {
  const Instant now = time.now();
  // One call tells of both sockets.  What was posted meanwhile has marked it active.
  PacketIo::Channels waiting{true, true};
  if (backed_off()) {
    if (now < look_at_) {
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
  {
    const GuardScope guard(env_.guard);
    first_packet_ = true;
    const auto small = waiting[0] ? static_cast<unsigned>(env_.stage.io().receive(
                                        Channel::command, *this, command_receives))
                                  : 0U;
    first_packet_ = false;
    work += small;
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
    work += static_cast<unsigned>(env_.hotel.evict(now, [](Room& room) {
      auto& segment = reinterpret_cast<Segment&>(room);  // the room is the segment's first member
      segment.path->on_evicted(segment);
    }));
  }
  work += dispatch();
  if (env_.acks_due) {
    env_.acks_due = false;
    work += progress_sends();
  }
  look_whether_to_doze();
  return work;
}

inline void DatagramPort::look_whether_to_doze() {
  back_off(false);
  if (fallback_paths_ != live_paths_) [[likely]] {
    return;
  }
  if (env_.active() || !nothing_waits()) {
    return;
  }
  // For heartbeats, and their acknowledgements, nobody waits but timers.  Nothing else comes
  // that could take an acknowledgement along.
  acknowledge_all();
  back_off(nothing_waits());
  look_at_ = env_.now + doze_time;
  if (const auto deadline = next_deadline()) {
    look_at_ = std::min(look_at_, *deadline);
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
  const bool stands_by = fallback_paths_ == live_paths_ && !env_.active();
  return stands_by ? std::chrono::milliseconds(10) : Poller::max_poll_gap();
}

std::optional<Instant> DatagramPort::next_deadline() {
  std::optional<Instant> deadline;
  if (env_.hotel.guests() != 0) {
    deadline = env_.hotel.sleep_until();
  }
  const PathLinks* owed = env_.acks.first();
  if (owed != nullptr && (!deadline || owed->ack_deadline < *deadline)) {
    deadline = owed->ack_deadline;
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
  return env_.ready.empty() && (env_.resends.empty() || resends_blocked_) &&
         env_.acks.urgent().empty() && env_.completions.empty() && env_.stage.empty();
}

bool DatagramPort::prepare_sleep() {
  wake();  // by what arrives, which is to be looked at
  return nothing_waits() && env_.stage.io().prepare_sleep();
}

DatagramPath* DatagramPort::find(const FrameHeader& header) {
  const uint32_t index = header.path & index_mask;
  DatagramPath* path = index < paths_.size() ? paths_[index] : nullptr;
  if (mutated(Mutation::place_is_enough)) {
    return path;
  }
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
    const size_t bytes = header_bytes + header->payload_length;
    DatagramPath* path = find(*header);
    if (path != nullptr) {
      path->on_frame(*header, datagram.subspan(header_bytes, header->payload_length));
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
  place_path_ = nullptr;
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
  if (path == nullptr || !path->takes(header->sequence)) {
    return {};
  }
  // How many of the coalesced frames go straight to their place?  The first certainly: its header
  // has been read.  The others are the next segments of the same fragment unless one was lost on
  // the way; their place has not been received yet, so a wrong guess harms nobody.
  size_t frames = 1;
  size_t bytes = header->payload_length;
  const size_t all = (total + segment - 1) / segment;
  const size_t left = header->fragment_length - header->fragment_offset;
  while (frames < all && frames < place_frames_max) {
    const size_t frame_bytes = std::min(segment, total - frames * segment);
    const auto sequence = header->sequence + static_cast<uint32_t>(frames);
    if (frame_bytes <= header_bytes || bytes + (frame_bytes - header_bytes) > left ||
        !path->takes(sequence)) {
      break;
    }
    bytes += frame_bytes - header_bytes;
    ++frames;
  }
  std::byte* to = env_.memory->resolve(header->key, path->domain(),
                                       header->address + header->fragment_offset, bytes);
  if (to == nullptr) {
    return {};
  }
  size_t parts = 0;
  for (size_t i = 0; i < frames; ++i) {
    const size_t payload = std::min(segment, total - i * segment) - header_bytes;
    place_parts_[parts++] = {place_headers_[i].data(), header_bytes};
    place_parts_[parts++] = {to, payload};
    to += payload;
  }
  place_rest_ = total > frames * segment ? total - frames * segment : 0;
  if (place_rest_ != 0) {
    place_parts_[parts++] = {scratch_.data(), place_rest_};
  }
  place_path_ = path;
  place_count_ = frames;
  place_segment_ = segment;
  return {place_parts_.data(), parts};
}

void DatagramPort::placed(size_t total) {
  if (place_path_ == nullptr) {
    return;
  }
  ++env_.statistics.datagrams_received;
  DatagramPath* path = place_path_;
  const auto first = decode(place_headers_[0], header_bytes + place_parts_[1].iov_len);
  size_t displaced_bytes = 0;
  std::array<std::pair<size_t, size_t>, place_frames_max> displaced;  // offset in scratch, length
  size_t displaced_count = 0;
  std::vector<std::byte> moved;  // allocated only after a loss inside a coalesced run
  for (size_t i = 0; i < place_count_; ++i) {
    const iovec& part = place_parts_[2 * i + 1];
    const auto header = decode(place_headers_[i], header_bytes + part.iov_len);
    const std::span<const std::byte> payload(static_cast<std::byte*>(part.iov_base), part.iov_len);
    const bool expected =
        header && first && header->type == FrameType::put && header->path == path->id() &&
        header->token == path->token() && header->key == first->key &&
        header->address == first->address && header->payload_length == part.iov_len &&
        header->address + header->fragment_offset == reinterpret_cast<uint64_t>(part.iov_base) &&
        path->takes(header->sequence);
    if (expected) {
      path->on_placed(*header, payload);
      continue;
    }
    // Take a copy before anything else is put in place: it may lie where another one belongs.
    displaced[displaced_count++] = {displaced_bytes, header_bytes + part.iov_len};
    moved.insert(moved.end(), place_headers_[i].begin(), place_headers_[i].end());
    moved.insert(moved.end(), payload.begin(), payload.end());
    displaced_bytes += header_bytes + part.iov_len;
  }
  for (size_t i = 0; i < displaced_count; ++i) {
    packet(std::span<const std::byte>(moved).subspan(displaced[i].first, displaced[i].second));
  }
  (void)total;
  for (size_t offset = 0; offset < place_rest_; offset += place_segment_) {
    packet(std::span<const std::byte>(scratch_).subspan(
        offset, std::min(place_segment_, place_rest_ - offset)));
  }
  place_path_ = nullptr;
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
