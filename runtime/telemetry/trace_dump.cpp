#include "runtime/telemetry/trace_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "runtime/base/whole_file.h"
#include "runtime/telemetry/counter_bytes.h"
#include "runtime/telemetry/counter_reader.h"

namespace nccl_ha {

namespace layout = counter_layout;

namespace {

/// More than any process's file has.
constexpr uint64_t trace_bytes_max = uint64_t{1} << 30;
constexpr int copies_max = 100;
/// A draft that nobody has written to for so long was left by who was killed; the clock of a file
/// server may be wrong by some of it.
constexpr int64_t unfinished_ns = 600'000'000'000;

/// As write_trace() names them.
bool is_draft(std::string_view name) {
  return name.ends_with(draft_ending) &&
         name.find(std::string(trace_ending) + ".") != std::string_view::npos;
}

int64_t read_clock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

Error cannot_copy(const char* what) {
  return fail(Errc::invalid_argument, fmt::format("the file is damaged: {}", what));
}

bool inside(std::span<const std::byte> bytes, const layout::Section& section, size_t entry_bytes) {
  return section.entry_bytes == entry_bytes && section.offset % 8 == 0 &&
         section.offset <= bytes.size() &&
         uint64_t{section.count} * entry_bytes <= bytes.size() - section.offset;
}

uint64_t load(const std::byte* at) {
  return reinterpret_cast<const std::atomic<uint64_t>*>(at)->load(std::memory_order_acquire);
}

/// Words that are written with release by their owner.
void copy_words(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = load(from + i);
    std::memcpy(to + i, &word, 8);
  }
}

void set_word(std::byte* to, uint64_t word) { std::memcpy(to, &word, sizeof word); }

void copy_block(std::byte* to, const std::byte* from) {
  for (int attempt = 0; attempt < copies_max; ++attempt) {
    const uint64_t before = load(from);
    copy_words(to, from, sizeof(layout::Block));
    if (before % 2 == 0 && load(from) == before) {
      set_word(to, before);
      return;
    }
  }
  set_word(to, 1);  // readers leave it out
}

void copy_slot(std::byte* to, const std::byte* from) {
  const uint64_t before = load(from);
  copy_words(to, from, sizeof(layout::RingSlot));
  set_word(to, before % 2 == 0 && load(from) == before ? before : 0);
}

/// Makes the copy, table by table.
class Copier {
 public:
  Copier(std::span<const std::byte> from, const layout::FileHeader& header)
      : from_(from), header_(header), to_(sizeof header) {}

  Result<std::vector<std::byte>> copy(std::string_view reason) {
    const layout::FileHeader& old = header_;
    if (!inside(from_, old.scopes, sizeof(layout::ScopeEntry)) ||
        !inside(from_, old.counters, sizeof(layout::CounterEntry)) ||
        !inside(from_, old.events, sizeof(layout::EventEntry)) ||
        !inside(from_, old.fields, sizeof(layout::FieldEntry)) || !inside(from_, old.strings, 1) ||
        !inside(from_, old.blocks, sizeof(layout::Block)) ||
        !inside(from_, old.rings, sizeof(layout::Ring))) {
      return cannot_copy("a table lies outside of it");
    }
    layout::FileHeader made = header_;
    for (auto section :
         {&layout::FileHeader::scopes, &layout::FileHeader::counters, &layout::FileHeader::events,
          &layout::FileHeader::fields, &layout::FileHeader::strings}) {
      made.*section = add(old.*section);
    }
    made.blocks = add_blocks();
    if (auto rings = add_rings(); rings) {
      made.rings = *rings;
    } else {
      return rings.error();
    }
    align();
    made.header_bytes = sizeof made;
    made.file_bytes = to_.size();
    made.dumped_ns = read_clock(CLOCK_MONOTONIC);
    made.dumped_realtime_ns = read_clock(CLOCK_REALTIME);
    made.reason.fill('\0');
    std::copy_n(reason.begin(), std::min(reason.size(), made.reason.size() - 1),
                made.reason.begin());
    std::memcpy(to_.data(), &made, sizeof made);
    return std::move(to_);
  }

 private:
  void align() { to_.resize((to_.size() + 63) / 64 * 64); }
  const std::byte* at(const layout::Section& section, size_t index) const {
    return from_.data() + section.offset + index * section.entry_bytes;
  }
  layout::Section add(const layout::Section& section) {
    align();
    const layout::Section made{to_.size(), section.count, section.entry_bytes};
    const auto* begin = at(section, 0);
    to_.insert(to_.end(), begin, begin + size_t{section.count} * section.entry_bytes);
    return made;
  }

  layout::Section add_blocks() {
    align();
    uint32_t used = header_.blocks.count;
    while (used > 0 &&
           load(at(header_.blocks, used - 1) + offsetof(layout::Block, what)) >> 32 == 0) {
      --used;
    }
    const layout::Section made{to_.size(), used, sizeof(layout::Block)};
    to_.resize(to_.size() + size_t{used} * sizeof(layout::Block));
    for (uint32_t i = 0; i < used; ++i) {
      copy_block(to_.data() + made.offset + i * sizeof(layout::Block), at(header_.blocks, i));
    }
    return made;
  }

  Result<layout::Section> add_rings() {
    align();
    std::vector<uint32_t> used;
    for (uint32_t i = 0; i < header_.rings.count; ++i) {
      if (load(at(header_.rings, i) + offsetof(layout::Ring, owner)) != 0) {
        used.push_back(i);
      }
    }
    const layout::Section made{to_.size(), static_cast<uint32_t>(used.size()),
                               sizeof(layout::Ring)};
    to_.resize(to_.size() + used.size() * sizeof(layout::Ring));
    uint64_t slots_left = from_.size() / sizeof(layout::RingSlot);
    for (size_t i = 0; i < used.size(); ++i) {
      const std::byte* ring = at(header_.rings, used[i]);
      const uint64_t capacity = load(ring + offsetof(layout::Ring, capacity));
      const uint64_t slots = load(ring + offsetof(layout::Ring, slots_offset));
      if (!std::has_single_bit(capacity) || slots % 8 != 0 || slots > from_.size() ||
          capacity > (from_.size() - slots) / sizeof(layout::RingSlot)) {
        return cannot_copy("a flight recorder lies outside of it");
      }
      // Each has slots of its own: a copy is no larger than what it is of.
      if (capacity > slots_left) {
        return cannot_copy("its flight recorders lie over each other");
      }
      slots_left -= capacity;
      add_ring(made.offset + i * sizeof(layout::Ring), ring, from_.data() + slots, capacity);
    }
    return made;
  }

  void add_ring(size_t place, const std::byte* ring, const std::byte* slots, uint64_t capacity) {
    const uint64_t written = load(ring + offsetof(layout::Ring, written));
    const uint64_t kept = std::min(written, capacity);
    const uint64_t room = std::min(capacity, std::bit_ceil(std::max<uint64_t>(kept, 1)));
    const size_t offset = to_.size();
    to_.resize(offset + room * sizeof(layout::RingSlot));
    align();
    std::byte* head = to_.data() + place;
    set_word(head + offsetof(layout::Ring, written), written);
    set_word(head + offsetof(layout::Ring, capacity), room);
    set_word(head + offsetof(layout::Ring, slots_offset), offset);
    set_word(head + offsetof(layout::Ring, owner), load(ring + offsetof(layout::Ring, owner)));
    for (uint64_t number = written - kept; number != written; ++number) {
      copy_slot(to_.data() + offset + (number & (room - 1)) * sizeof(layout::RingSlot),
                slots + (number & (capacity - 1)) * sizeof(layout::RingSlot));
    }
  }

  const std::span<const std::byte> from_;
  const layout::FileHeader header_;
  std::vector<std::byte> to_;
};

}  // namespace

Result<std::vector<std::byte>> copy_counters(std::span<const std::byte> bytes,
                                             std::string_view reason) {
  const auto header = parse_counter_header(bytes);
  if (!header) {
    return header.error();
  }
  if (header->file_bytes > bytes.size()) {
    return cannot_copy("it is shorter than it says");
  }
  return Copier(bytes.first(header->file_bytes), *header).copy(reason);
}

Result<std::vector<std::byte>> copy_counter_file(const std::string& path, std::string_view reason,
                                                 EventsWanted events) {
  const auto refuse = [&path](const Error& error) {
    return fail(error.code, fmt::format("{}: {}", path, error.what), error.sys);
  };
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    return refuse(fail(Errc::system, "cannot open it", errno));
  }
  const auto bytes = CounterBytes::read(fd, events);
  close(fd);
  if (!bytes) {
    return refuse(bytes.error());
  }
  auto copy = copy_counters(bytes->bytes(), reason);
  return copy ? std::move(copy) : refuse(copy.error());
}

Result<void> write_trace(const std::string& path, std::span<const std::byte> bytes) {
  return replace_file(path, bytes, trace_mode);
}

Result<TraceBytes> TraceBytes::load(const std::string& path) {
  const auto refuse = [&path](const char* what, int error) {
    return fail(Errc::invalid_argument, fmt::format("{}: {}", path, what), error);
  };
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    return refuse("cannot open it", errno);
  }
  struct stat info {};
  const char* wrong = fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ? "it is no regular file"
                      : static_cast<uint64_t>(info.st_size) > trace_bytes_max
                          ? "it is too large for a dump"
                          : nullptr;
  if (wrong != nullptr) {
    close(fd);
    return refuse(wrong, 0);
  }
  TraceBytes read;
  const auto size = static_cast<size_t>(info.st_size);
  read.memory_ = std::make_unique<std::byte[]>(size + 64);
  auto* begin = read.memory_.get();
  begin += (64 - reinterpret_cast<uintptr_t>(begin) % 64) % 64;
  read.begin_ = begin;
  ssize_t got = 1;
  while (read.size_ < size && got != 0) {
    got = ::read(fd, begin + read.size_, size - read.size_);
    if (got < 0 && errno != EINTR) {
      const int error = errno;
      close(fd);
      return refuse("cannot read it", error);
    }
    read.size_ += got > 0 ? static_cast<size_t>(got) : 0;
  }
  close(fd);
  return read;
}

void make_room_for_traces(const std::string& directory, uint64_t bytes_max, uint64_t more) {
  struct Found {
    std::string path;
    int64_t made = 0;
    uint64_t bytes = 0;
  };
  std::vector<Found> all;
  std::error_code error;
  uint64_t sum = more;
  const int64_t now = read_clock(CLOCK_REALTIME);
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool draft = is_draft(name);
    struct stat info {};
    if (!name.starts_with("nccl-ha-") || !(draft || name.ends_with(trace_ending)) ||
        lstat(entry->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_uid != geteuid()) {
      continue;
    }
    const int64_t made = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    if (draft && now - made > unfinished_ns) {
      ::unlink(entry->path().c_str());
      continue;
    }
    sum += static_cast<uint64_t>(info.st_size);
    if (!draft) {  // what somebody is writing counts, and stays
      all.push_back({entry->path().string(), made, static_cast<uint64_t>(info.st_size)});
    }
  }
  std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.made < b.made; });
  for (size_t i = 0; i < all.size() && sum > bytes_max; ++i) {
    ::unlink(all[i].path.c_str());
    sum -= all[i].bytes;
  }
}

}  // namespace nccl_ha
