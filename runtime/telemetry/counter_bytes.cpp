#include "runtime/telemetry/counter_bytes.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nccl_ha {

namespace layout = counter_layout;

namespace {

constexpr int readings_max = 100;
constexpr uint64_t being_written = 1;  // of a block's sequence, and of a slot's version

/// How many bytes are there.
size_t read_at(int fd, std::byte* to, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd, to + done, size - done, static_cast<off_t>(offset + done));
    if (got == 0 || (got < 0 && errno != EINTR)) {
      break;
    }
    done += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return done;
}

}  // namespace

CounterBytes::CounterBytes(int fd, size_t size)
    : lines_((size + sizeof(Line) - 1) / sizeof(Line)), size_(read_at(fd, at(0), size, 0)) {}

Result<CounterBytes> CounterBytes::read(int fd, EventsWanted events) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return fail(Errc::invalid_argument, "it is no regular file");
  }
  auto header = parse_counter_header(CounterBytes(fd, sizeof(layout::FileHeader)).bytes());
  if (!header) {
    return header.error();
  }
  uint64_t wanted = header->file_bytes;
  if (events == EventsWanted::no) {
    header->rings = {0, 0, sizeof(layout::Ring)};
    wanted = sizeof(layout::FileHeader);
    for (const layout::Section& one : {header->scopes, header->counters, header->events,
                                       header->fields, header->strings, header->blocks}) {
      wanted = std::max<uint64_t>(wanted, one.offset + uint64_t{one.count} * one.entry_bytes);
    }
    header->file_bytes = wanted;
  }
  if (wanted > static_cast<uint64_t>(info.st_size)) {
    return fail(Errc::invalid_argument, "the file is damaged: it is shorter than it says");
  }
  const uint64_t most = info.st_uid == geteuid() ? own_bytes_max : foreign_bytes_max;
  if (wanted > most) {
    return fail(Errc::invalid_argument,
                fmt::format("it has more counters than are read: {} MiB", most >> 20));
  }
  CounterBytes made(fd, wanted);
  const CounterBytes later(fd, wanted);
  if (made.size_ != wanted || later.size_ != wanted || wanted < sizeof *header) {
    return fail(Errc::invalid_argument, "the file is damaged: it was cut short meanwhile");
  }
  // The tables are where the header says that was looked at, whatever has become of it.
  std::memcpy(made.lines_.data(), &*header, sizeof *header);
  if (header->blocks.entry_bytes >= sizeof(layout::Block)) {
    made.settle_blocks(fd, later, header->blocks);
  }
  if (header->rings.entry_bytes >= sizeof(layout::Ring)) {
    made.settle_rings(later, header->rings);
  }
  return made;
}

bool CounterBytes::changed(const CounterBytes& later, uint64_t offset) const {
  return std::memcmp(bytes().data() + offset, later.bytes().data() + offset, sizeof(uint64_t)) != 0;
}

/// What changed between two readings may be half of one state and half of the other.
void CounterBytes::settle_blocks(int fd, const CounterBytes& later, const layout::Section& blocks) {
  for (uint64_t i = 0; i < blocks.count; ++i) {
    const uint64_t offset = blocks.offset + i * blocks.entry_bytes;
    if (!holds(offset, sizeof(layout::Block))) {
      return;
    }
    uint64_t before = being_written;
    uint64_t after = 0;
    bool torn = changed(later, offset);
    for (int attempt = 0; torn && attempt < readings_max; ++attempt) {
      torn =
          read_at(fd, at(offset), sizeof(layout::Block), offset) != sizeof(layout::Block) ||
          read_at(fd, reinterpret_cast<std::byte*>(&after), sizeof after, offset) != sizeof after;
      std::memcpy(&before, at(offset), sizeof before);
      torn = torn || before != after || before % 2 != 0;
    }
    if (torn) {
      std::memcpy(at(offset), &being_written, sizeof being_written);
    }
  }
}

void CounterBytes::settle_rings(const CounterBytes& later, const layout::Section& rings) {
  uint64_t slots_left = size_ / sizeof(layout::RingSlot);
  for (uint64_t i = 0; i < rings.count; ++i) {
    const uint64_t offset = rings.offset + i * rings.entry_bytes;
    if (!holds(offset, sizeof(layout::Ring))) {
      return;
    }
    const auto& ring = *reinterpret_cast<const layout::Ring*>(at(offset));
    const uint64_t capacity = ring.capacity;
    const uint64_t slots = ring.slots_offset;
    if (capacity > slots_left || !holds(slots, capacity * sizeof(layout::RingSlot))) {
      return;  // who reads it finds out
    }
    slots_left -= capacity;
    for (uint64_t slot = 0; slot < capacity; ++slot) {
      const uint64_t place = slots + slot * sizeof(layout::RingSlot);
      if (changed(later, place)) {
        std::memcpy(at(place), &being_written, sizeof being_written);
      }
    }
  }
}

}  // namespace nccl_ha
