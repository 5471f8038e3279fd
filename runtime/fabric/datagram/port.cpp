#include "runtime/fabric/datagram/port.h"

#include <algorithm>
#include <cstring>

#include "runtime/check.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/mutation.h"

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
    : io_(std::move(io)),
      options_(options),
      env_(environment),
      interface_mtu_(interface_mtu != 0 ? interface_mtu
                                        : static_cast<uint32_t>(io_->datagram_bytes_max())),
      command_bytes_(std::min(io_->datagram_bytes_max(), SendBatch::datagram_bytes)),
      now_(environment.clock->now()),
      hotel_(now_),
      zeros_(scratch_bytes),
      scratch_(scratch_bytes) {
  env_.memory->attach(&guard_);
}

DatagramPort::~DatagramPort() {
  NHA_ASSERT(live_paths_ == 0, "a datagram port was destroyed before its paths");
  env_.memory->detach(&guard_);
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
  auto path = std::make_unique<DatagramPath>(*this, options, owner, id);
  paths_[index] = path.get();
  ++live_paths_;
  fallback_paths_ += options.fallback ? 1 : 0;
  wake();
  // Room for everything that can complete at once, so that complete() never allocates.
  completion_need_ += path->requests_.size() + path->receives_.size();
  if (completions_.size() < completion_need_) {
    std::vector<Completion> larger(std::max<size_t>(completion_need_ * 2, 1024));
    for (size_t i = 0; i < completion_count_; ++i) {
      larger[i] = completions_[(completion_head_ + i) % completions_.size()];
    }
    completions_ = std::move(larger);
    completion_head_ = 0;
  }
  return std::unique_ptr<Path>(std::move(path));
}

void DatagramPort::remove(DatagramPath& path) {
  flush_all();  // staged frames point into the path
  const uint32_t index = path.id_ & index_mask;
  paths_[index] = nullptr;
  free_paths_.push_back(index);
  --live_paths_;
  fallback_paths_ -= path.options_.fallback ? 1 : 0;
  completion_need_ -= path.requests_.size() + path.receives_.size();
  for (size_t i = 0; i < completion_count_; ++i) {
    Completion& completion = completions_[(completion_head_ + i) % completions_.size()];
    if (completion.path == &path) {
      completion.path = nullptr;
    }
  }
  std::replace(state_events_.begin(), state_events_.end(), &path,
               static_cast<DatagramPath*>(nullptr));
  std::erase(urgent_acks_, &path);
  unlist_ack(path);
  if (path.ready_listed_) {
    DatagramPath** link = &ready_head_;
    DatagramPath* previous = nullptr;
    while (*link != &path) {
      previous = *link;
      link = &(*link)->ready_next_;
    }
    *link = path.ready_next_;
    if (ready_tail_ == &path) {
      ready_tail_ = previous;
    }
  }
  Segment* kept = nullptr;
  Segment** tail = &kept;
  resend_tail_ = nullptr;
  for (Segment* segment = resend_head_; segment != nullptr;) {
    Segment* next = segment->resend_next;
    if (segment->path != &path) {
      *tail = segment;
      tail = &segment->resend_next;
      resend_tail_ = segment;
    }
    segment = next;
  }
  *tail = nullptr;
  resend_head_ = kept;
  if (place_path_ == &path) {
    place_path_ = nullptr;
  }
}

uint32_t DatagramPort::now_us() const {
  return static_cast<uint32_t>(now_.time_since_epoch().count() / 1000);
}

unsigned DatagramPort::poll(Clock& time) {
  const Instant now = time.now();
  // One call tells of both sockets.  What was posted meanwhile has marked it active.
  PacketIo::Channels waiting{true, true};
  if (backed_off()) {
    if (now < look_at_) {
      return 0;
    }
    waiting = io_->waiting();
  }
  const bool was_backed_off = backed_off();
  now_ = now;
  unsigned work = 0;
  ++pass_;
  io_->tick(now);
  work += progress_sends();
  fast_received_ = false;
  {
    GuardScope guard(*this);
    first_packet_ = true;
    const auto small =
        waiting[0] ? static_cast<unsigned>(io_->receive(Channel::command, *this, command_receives))
                   : 0U;
    first_packet_ = false;
    work += small;
    // Tiny messages first: when some came, bulk data waits for the next pass, but not for ever.
    // While none is under way, every other pass does, and tiny messages are seen the sooner.
    if (was_backed_off ? waiting[1]
        : data_busy_   ? small == 0 || (pass_ & 3U) == 0
                       : (pass_ & 1U) == 0) {
      const auto bulk = static_cast<unsigned>(io_->receive(Channel::data, *this, data_receives));
      data_busy_ = bulk != 0;
      work += bulk;
    }
    work += static_cast<unsigned>(hotel_.evict(now, [](Room& room) {
      auto& segment = reinterpret_cast<Segment&>(room);  // the room is the segment's first member
      segment.path->on_evicted(segment);
    }));
  }
  work += dispatch();
  if (acks_due_) {
    acks_due_ = false;
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
  if (now_ < active_until_ || payload_in_flight_ != 0 || !nothing_waits()) {
    return;
  }
  // For heartbeats, and their acknowledgements, nobody waits but timers.  Nothing else comes
  // that could take an acknowledgement along.
  acknowledge_all();
  back_off(nothing_waits());
  look_at_ = now_ + doze_time;
  if (const auto deadline = next_deadline()) {
    look_at_ = std::min(look_at_, *deadline);
  }
}

void DatagramPort::acknowledge_all() {
  if (ack_head_ == nullptr) {
    return;
  }
  while (ack_head_ != nullptr) {
    ack_head_->send_ack();  // takes itself off the list
  }
  flush_all();
}

Duration DatagramPort::max_poll_gap() const {
  const bool stands_by =
      fallback_paths_ == live_paths_ && now_ >= active_until_ && payload_in_flight_ == 0;
  return stands_by ? std::chrono::milliseconds(10) : Poller::max_poll_gap();
}

std::optional<Instant> DatagramPort::next_deadline() {
  std::optional<Instant> deadline;
  if (hotel_.guests() != 0) {
    deadline = hotel_.sleep_until();
  }
  if (ack_head_ != nullptr && (!deadline || ack_head_->ack_deadline_ < *deadline)) {
    deadline = ack_head_->ack_deadline_;
  }
  return deadline;
}

size_t DatagramPort::wait_fds(std::span<int> out) const {
  size_t count = 0;
  for (const Channel channel : {Channel::command, Channel::data}) {
    const int fd = io_->wait_fd(channel);
    if (fd >= 0 && count < out.size()) {
      out[count++] = fd;
    }
  }
  return count;
}

bool DatagramPort::nothing_waits() const {
  return ready_head_ == nullptr && (resend_head_ == nullptr || resends_blocked_) &&
         urgent_acks_.empty() && completion_count_ == 0 && state_events_.empty() &&
         command_.empty() && data_.empty();
}

bool DatagramPort::prepare_sleep() {
  wake();  // by what arrives, which is to be looked at
  return nothing_waits() && io_->prepare_sleep();
}

DatagramPath* DatagramPort::find(const FrameHeader& header) {
  const uint32_t index = header.path & index_mask;
  DatagramPath* path = index < paths_.size() ? paths_[index] : nullptr;
  if (mutated(Mutation::place_is_enough)) {
    return path;
  }
  if (path == nullptr || path->id_ != header.path) {
    ++statistics_.unknown_path;
    return nullptr;
  }
  if (path->local_.token != header.token) {
    ++statistics_.bad_token;
    return nullptr;
  }
  return path;
}

void DatagramPort::packet(std::span<const std::byte> datagram) {
  ++statistics_.datagrams_received;
  bool first = first_packet_;
  first_packet_ = false;
  while (!datagram.empty()) {
    const auto header = decode(datagram, datagram.size());
    if (!header) {
      ++statistics_.malformed;
      return;
    }
    const size_t bytes = header_bytes + header->payload_length;
    DatagramPath* path = find(*header);
    if (path != nullptr) {
      path->on_frame(*header, datagram.subspan(header_bytes, header->payload_length));
      // Fast receive: the first packet of a pass, in order and tiny, is handed on before any of
      // the bookkeeping that follows it (acknowledgements, statistics, other packets).
      if (first && header->type == FrameType::put && completion_count_ == 1 && guard_depth_ == 1) {
        ++path->statistics_.fast_receives;
        fast_received_ = true;
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
  if (path == nullptr || path->state_ == PathState::error ||
      path->window_.check(header->sequence) != ReceiveWindow::Verdict::fresh) {
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
        path->window_.check(sequence) != ReceiveWindow::Verdict::fresh) {
      break;
    }
    bytes += frame_bytes - header_bytes;
    ++frames;
  }
  std::byte* to = env_.memory->resolve(header->key, path->options_.domain,
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
  place_sequence_ = header->sequence;
  return {place_parts_.data(), parts};
}

void DatagramPort::placed(size_t total) {
  if (place_path_ == nullptr) {
    return;
  }
  ++statistics_.datagrams_received;
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
        header && first && header->type == FrameType::put && header->path == path->id_ &&
        header->token == path->local_.token && header->key == first->key &&
        header->address == first->address && header->payload_length == part.iov_len &&
        header->address + header->fragment_offset == reinterpret_cast<uint64_t>(part.iov_base) &&
        path->window_.check(header->sequence) == ReceiveWindow::Verdict::fresh;
    if (expected) {
      path->on_segment(*header, payload, true);
      path->handle_ack(*header, {});
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

void DatagramPort::complete(const Completion& completion) {
  NHA_ASSERT(completion_count_ < completions_.size(), "more completions than posted work");
  completions_[(completion_head_ + completion_count_) % completions_.size()] = completion;
  ++completion_count_;
  wake();
}

void DatagramPort::queue_state(DatagramPath& path) {
  wake();
  state_events_.push_back(&path);
}

unsigned DatagramPort::dispatch() {
  unsigned count = 0;
  // Owners may post, destroy paths and cause further completions from here.
  while (completion_count_ != 0) {
    const Completion completion = completions_[completion_head_];
    completion_head_ = (completion_head_ + 1) % completions_.size();
    --completion_count_;
    ++count;
    if (completion.path != nullptr) {
      static_cast<DatagramPath*>(completion.path)->owner_->on_completion(completion);
    }
  }
  for (size_t i = 0; i < state_events_.size(); ++i) {
    DatagramPath* path = state_events_[i];
    ++count;
    if (path != nullptr) {
      const Error error = path->error_;
      path->owner_->on_path_state(*path, path->state_, error);
    }
  }
  state_events_.clear();
  return count;
}

}  // namespace nccl_ha::fabric
