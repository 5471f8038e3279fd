#include "runtime/telemetry/counter_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/host.h"
#include "runtime/telemetry/counter_bytes.h"

namespace nccl_ha {

namespace layout = counter_layout;

namespace {

/// A block that is written all the time is left out after so many attempts.
constexpr int attempts_max = 100;
constexpr size_t text_max = 256;
/// Of a flight recorder; HA_NCCL_RECORD_EVENTS allows no more.
constexpr uint64_t ring_slots_max = uint64_t{1} << 24;

/// What may be shown in a terminal.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, text_max));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

template <size_t Size>
std::string text_of(const std::array<char, Size>& bytes) {
  return printable({bytes.data(), strnlen(bytes.data(), Size)});
}

Error damaged(const char* what) {
  return fail(Errc::invalid_argument, fmt::format("the file is damaged: {}", what));
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(by, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// A file whose header was found to be right, and tables whose bounds were.
class View {
 public:
  /// With `damages`, what is wrong is noted there, and the rest is read.
  View(std::span<const std::byte> bytes, const layout::FileHeader& header, EventsWanted events,
       std::vector<std::string>* damages = nullptr)
      : bytes_(bytes), header_(header), events_(events), damages_(damages) {}

  Result<CounterSnapshot> read() {
    const bool inside = holds<layout::ScopeEntry>(header_.scopes) &&
                        holds<layout::CounterEntry>(header_.counters) &&
                        holds<layout::EventEntry>(header_.events) &&
                        holds<layout::FieldEntry>(header_.fields) && holds<char>(header_.strings) &&
                        holds<layout::Block>(header_.blocks) && holds<layout::Ring>(header_.rings);
    if (!inside) {
      if (auto bad = damage("a table lies outside of it"); !bad) {
        return bad.error();
      }
      cut<layout::ScopeEntry>(header_.scopes);
      cut<layout::CounterEntry>(header_.counters);
      cut<layout::EventEntry>(header_.events);
      cut<layout::FieldEntry>(header_.fields);
      cut<char>(header_.strings);
      cut<layout::Block>(header_.blocks);
      cut<layout::Ring>(header_.rings);
    }
    CounterSnapshot out;
    out.host = text_of(header_.host);
    out.clock = header_.clock;
    out.dumped_realtime_ns = header_.dumped_realtime_ns;
    out.dumped_ns = header_.dumped_ns;
    out.reason = text_of(header_.reason);
    out.pid = header_.pid;
    out.instance = header_.instance;
    out.created_realtime_ns = header_.created_realtime_ns;
    out.created_ns = header_.created_ns;
    out.build = text_of(header_.build);
    out.program = text_of(header_.program);
    if (auto read = read_scopes(out); !read) {
      return read.error();
    }
    if (auto read = read_kinds(out); !read) {
      return read.error();
    }
    for (uint32_t i = 0; i < header_.blocks.count; ++i) {
      if (auto read = read_block(at<layout::Block>(header_.blocks, i), out); !read) {
        return read.error();
      }
    }
    std::sort(out.blocks.begin(), out.blocks.end(),
              [](const auto& a, const auto& b) { return a.id < b.id; });
    for (uint32_t i = 0; i < header_.rings.count; ++i) {
      if (auto read = read_ring_at(at<layout::Ring>(header_.rings, i), out); !read) {
        return read.error();
      }
    }
    return out;
  }

 private:
  Result<void> damage(const char* what) const {
    if (damages_ == nullptr) {
      return damaged(what);
    }
    if (damages_->empty() || damages_->back() != what) {
      damages_->emplace_back(what);
    }
    return {};
  }
  /// Leaves of a table what lies inside.
  template <class Entry>
  void cut(layout::Section& section) const {
    if (section.entry_bytes < sizeof(Entry) || section.entry_bytes % alignof(Entry) != 0 ||
        section.offset % alignof(Entry) != 0 || section.offset > bytes_.size()) {
      section = {0, 0, sizeof(Entry)};
      return;
    }
    section.count = static_cast<uint32_t>(
        std::min<uint64_t>(section.count, (bytes_.size() - section.offset) / section.entry_bytes));
  }
  template <class Entry>
  bool holds(const layout::Section& section) const {
    return section.entry_bytes >= sizeof(Entry) && section.entry_bytes % alignof(Entry) == 0 &&
           section.offset % alignof(Entry) == 0 && section.offset <= bytes_.size() &&
           uint64_t{section.count} * section.entry_bytes <= bytes_.size() - section.offset;
  }
  template <class Entry>
  const Entry& at(const layout::Section& section, uint32_t index) const {
    return *reinterpret_cast<const Entry*>(bytes_.data() + section.offset +
                                           size_t{index} * section.entry_bytes);
  }
  std::string text(uint32_t offset) const {
    if (offset >= header_.strings.count) {
      return "?";
    }
    const auto* begin =
        reinterpret_cast<const char*>(bytes_.data()) + header_.strings.offset + offset;
    return printable({begin, strnlen(begin, header_.strings.count - offset)});
  }

  Result<void> read_scopes(CounterSnapshot& out) const {
    for (uint32_t i = 0; i < header_.scopes.count; ++i) {
      auto entry = at<layout::ScopeEntry>(header_.scopes, i);
      if (entry.count > layout::values_max || entry.first > header_.counters.count ||
          entry.count > header_.counters.count - entry.first) {
        if (auto bad = damage("a scope names counters that are not there"); !bad) {
          return bad;
        }
        entry.count = 0;
      }
      CounterSnapshot::Scope scope{text(entry.name), text(entry.help), {}};
      for (uint32_t j = 0; j < entry.count; ++j) {
        const auto counter = at<layout::CounterEntry>(header_.counters, entry.first + j);
        scope.counters.push_back({text(counter.name), text(counter.unit), text(counter.help),
                                  static_cast<CounterKind>(std::min<uint32_t>(
                                      counter.kind, static_cast<uint32_t>(CounterKind::most)))});
      }
      out.scopes.push_back(std::move(scope));
    }
    return {};
  }

  Result<void> read_kinds(CounterSnapshot& out) const {
    for (uint32_t i = 0; i < header_.events.count; ++i) {
      auto entry = at<layout::EventEntry>(header_.events, i);
      if (entry.count > layout::fields_max || entry.first > header_.fields.count ||
          entry.count > header_.fields.count - entry.first) {
        if (auto bad = damage("an event names fields that are not there"); !bad) {
          return bad;
        }
        entry.count = 0;
      }
      CounterSnapshot::EventKind kind{text(entry.name), text(entry.help), {}};
      for (uint32_t j = 0; j < entry.count; ++j) {
        const auto field = at<layout::FieldEntry>(header_.fields, entry.first + j);
        kind.fields.push_back({text(field.name), text(field.unit), split(text(field.values), '|'),
                               static_cast<uint8_t>(field.where),
                               static_cast<uint8_t>(field.where >> 8),
                               static_cast<uint8_t>(field.where >> 16)});
      }
      out.kinds.push_back(std::move(kind));
    }
    return {};
  }

  Result<void> read_block(const layout::Block& block, CounterSnapshot& out) const {
    // A word of a later write comes with that write's odd sequence: see CounterFile::write.
    constexpr auto acquire = std::memory_order_acquire;
    for (int attempt = 0; attempt < attempts_max; ++attempt) {
      const uint64_t before = block.sequence.load(acquire);
      CounterSnapshot::Block read;
      read.id = block.id.load(acquire);
      read.parent = block.parent.load(acquire);
      const uint64_t what = block.what.load(acquire);
      read.began_ns = static_cast<int64_t>(block.began_ns.load(acquire));
      std::array<uint64_t, layout::label_words> words;
      for (size_t i = 0; i < words.size(); ++i) {
        words[i] = block.label[i].load(acquire);
      }
      std::array<uint64_t, layout::values_max> values;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = block.values[i].load(acquire);
      }
      if (before % 2 != 0 || block.sequence.load(std::memory_order_relaxed) != before) {
        continue;
      }
      const auto state = static_cast<uint32_t>(what >> 32);
      read.scope = static_cast<uint32_t>(what);
      if (state == static_cast<uint32_t>(layout::BlockState::empty)) {
        return {};
      }
      if (state > static_cast<uint32_t>(layout::BlockState::ended) ||
          read.scope >= out.scopes.size()) {
        return damage("a block is of no known kind");
      }
      read.ended = state == static_cast<uint32_t>(layout::BlockState::ended);
      read.label = text_of(std::bit_cast<std::array<char, layout::label_bytes>>(words));
      const auto count = static_cast<ptrdiff_t>(out.scopes[read.scope].counters.size());
      read.values.assign(values.begin(), values.begin() + count);
      out.blocks.push_back(std::move(read));
      return {};
    }
    return {};  // its process was killed in the middle of writing it
  }

  Result<void> read_ring_at(const layout::Ring& ring, CounterSnapshot& out) const {
    CounterSnapshot::Ring read;
    read.owner = ring.owner.load(std::memory_order_acquire);
    read.capacity = ring.capacity;
    const uint64_t slots_offset = ring.slots_offset;
    if (read.owner == 0) {
      return {};
    }
    if (!std::has_single_bit(read.capacity) || slots_offset % alignof(layout::RingSlot) != 0 ||
        slots_offset > bytes_.size() || read.capacity > ring_slots_max) {
      return damage("a flight recorder lies outside of it");
    }
    const uint64_t there =
        std::min((bytes_.size() - slots_offset) / sizeof(layout::RingSlot), read.capacity);
    if (there < read.capacity) {
      if (auto bad = damage("the end of a flight recorder is missing"); !bad) {
        return bad;
      }
    }
    // Each has slots of its own: all together are no more than the file has room for.
    if (there > slots_left_) {
      return damage("flight recorders lie over each other");
    }
    slots_left_ -= there;
    const auto* slots = reinterpret_cast<const layout::RingSlot*>(bytes_.data() + slots_offset);
    read.written = ring.written.load(std::memory_order_acquire);
    if (events_ == EventsWanted::yes) {
      read.events = read_ring(slots, read.capacity, read.written, there);
    }
    out.rings.push_back(std::move(read));
    return {};
  }

  const std::span<const std::byte> bytes_;
  layout::FileHeader header_;
  const EventsWanted events_;
  std::vector<std::string>* const damages_;
  mutable uint64_t slots_left_ = bytes_.size() / sizeof(layout::RingSlot);
};

struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() {
    if (fd >= 0) {
      close(fd);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

int open_to_read(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

Result<layout::FileHeader> read_header(int fd) {
  alignas(8) std::array<std::byte, sizeof(layout::FileHeader)> bytes;
  const ssize_t got = pread(fd, bytes.data(), bytes.size(), 0);
  if (got < 0) {
    return fail(Errc::system, "cannot read", errno);
  }
  return parse_counter_header(std::span(bytes).first(static_cast<size_t>(got)));
}

/// A lock tells in every container, but a fork keeps it when the process itself is gone.
bool may_run(const layout::FileHeader* header, int fd) {
  if (header != nullptr && header->process_start != 0 && header->pid_namespace != 0 &&
      header->pid_namespace == pid_namespace()) {
    return process_start_ticks(header->pid) == header->process_start;
  }
  return flock(fd, LOCK_SH | LOCK_NB) != 0;
}

/// Of nccl-ha-PID-INSTANCE.counters, or of one in the making.
std::optional<uint32_t> pid_of_name(std::string_view name, std::string_view ending) {
  constexpr std::string_view prefix = "nccl-ha-";
  if (!name.starts_with(prefix) || !name.ends_with(ending)) {
    return std::nullopt;
  }
  uint32_t pid = 0;
  const char* begin = name.data() + prefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), pid);
  return error == std::errc{} && *end == '-' ? std::optional(pid) : std::nullopt;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(directory.c_str()), closedir);
  while (entries != nullptr) {
    const dirent* entry = readdir(entries.get());
    if (entry == nullptr) {
      break;
    }
    names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool of_this_user(const struct stat& info) { return info.st_uid == geteuid(); }

/// Of another user's file that may be read all the same: whether it can be of the process that it
/// names, which made it for its user only.
bool counts_for(const struct stat& info, const std::optional<uid_t>& process_owner) {
  return (info.st_mode & 077) == 0 && process_owner == info.st_uid;
}

}  // namespace

Result<ProcessCounterFile> read_counter_file(const std::string& path, EventsWanted events) {
  const auto refuse = [&path](const Error& error) {
    return fail(error.code, fmt::format("{}: {}", path, error.what), error.sys);
  };
  const Descriptor file(open_to_read(path));
  if (file.fd < 0) {
    return errno == EACCES || errno == EPERM
               ? refuse(fail(Errc::invalid_argument,
                             "it belongs to another user: ask as that user or as root"))
               : refuse(fail(Errc::system, "cannot open it", errno));
  }
  struct stat info {};
  if (fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return refuse(fail(Errc::invalid_argument, "it is no regular file"));
  }
  const auto bytes = CounterBytes::read(file.fd, events);
  if (!bytes) {
    return refuse(bytes.error());
  }
  ProcessCounterFile out;
  out.path = path;
  const auto header = parse_counter_header(bytes->bytes());
  out.running = header && may_run(&*header, file.fd);
  auto snapshot = parse_counters(bytes->bytes(), events);
  if (!snapshot) {
    return refuse(snapshot.error());
  }
  out.snapshot = std::move(*snapshot);
  return out;
}

Result<layout::FileHeader> parse_counter_header(std::span<const std::byte> bytes) {
  layout::FileHeader header{};
  if (!bytes.empty()) {  // memcpy() takes no null, even of nothing
    std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof header));
  }
  if (bytes.size() < sizeof header.magic || header.magic != layout::magic) {
    return fail(Errc::invalid_argument, "it holds no counters of nccl-ha");
  }
  // The version says what the rest means.
  if (bytes.size() >= offsetof(layout::FileHeader, header_bytes) &&
      header.version != layout::version) {
    return fail(Errc::invalid_argument,
                fmt::format("it has layout {}, and this program reads layout {}: use the nccl-ha "
                            "that was installed with the plugin",
                            header.version, layout::version));
  }
  if (bytes.size() < sizeof header || header.header_bytes < sizeof header) {
    return damaged("it is too short");
  }
  return header;
}

const CounterSnapshot::EventKind& CounterSnapshot::kind_of(const RecordedEvent& event) const {
  static const EventKind unknown{"?", "", {}};
  const auto number = static_cast<size_t>(event.event);
  return number < kinds.size() ? kinds[number] : unknown;
}

std::string to_text(const CounterSnapshot::Field& field, const RecordedEvent& event) {
  const uint64_t value = value_of(event, field.word, field.shift, field.bits);
  if (value < field.values.size()) {
    return field.values[value];
  }
  return fmt::format("{}{}{}", value, field.unit.empty() ? "" : " ", field.unit);
}

Result<CounterSnapshot> parse_counters(std::span<const std::byte> bytes, EventsWanted events) {
  const auto header = parse_counter_header(bytes);
  if (!header) {
    return header.error();
  }
  if (header->file_bytes > bytes.size()) {
    return damaged("it is shorter than it says");
  }
  return View(bytes.first(header->file_bytes), *header, events).read();
}

Result<CounterSnapshot> salvage_counters(std::span<const std::byte> bytes,
                                         std::vector<std::string>& damages) {
  const auto header = parse_counter_header(bytes);
  if (!header) {
    return header.error();
  }
  if (header->file_bytes > bytes.size()) {
    damages.emplace_back("it is shorter than it says: its end is missing");
  }
  return View(bytes, *header, EventsWanted::yes, &damages).read();
}

std::vector<CounterFileFound> find_counter_files(const std::string& directory, CounterOwner owner) {
  std::vector<CounterFileFound> all;
  for (const std::string& name : names_in(directory)) {
    const auto finished = pid_of_name(name, ".counters");
    const auto pid = finished ? finished : pid_of_name(name, ".tmp");
    if (!pid) {
      continue;
    }
    CounterFileFound found;
    found.path = fmt::format("{}/{}", directory, name);
    found.pid = *pid;
    const Descriptor file(open_to_read(found.path));
    struct stat info {};
    if (file.fd < 0 || fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode) ||
        (!of_this_user(info) &&
         (owner == CounterOwner::this_user || !counts_for(info, process_owner(*pid))))) {
      continue;
    }
    const auto header = read_header(file.fd);
    if (header && header->pid != *pid && !of_this_user(info)) {
      continue;
    }
    found.good = finished && header.ok();
    found.running = may_run(header ? &*header : nullptr, file.fd);
    found.bytes = static_cast<uint64_t>(info.st_blocks) * 512;
    found.made_ns =
        found.good ? header->created_realtime_ns : int64_t{info.st_ctim.tv_sec} * 1'000'000'000;
    all.push_back(std::move(found));
  }
  return all;
}

Result<std::vector<ProcessCounterFile>> read_counters_of(uint32_t pid, const std::string& directory,
                                                         EventsWanted events) {
  std::vector<ProcessCounterFile> files;
  const auto foreign = [pid](const std::string& path) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: it belongs to another user than process {}", path, pid));
  };
  std::optional<Error> wrong;  // with another user's file, which is no reason to see nothing
  const auto owner = process_owner(pid);
  for (const std::string& name : names_in(directory)) {
    if (pid_of_name(name, ".counters") != pid) {
      continue;
    }
    const std::string path = fmt::format("{}/{}", directory, name);
    struct stat info {};
    const bool own = lstat(path.c_str(), &info) == 0 && of_this_user(info);
    if (!own && ((info.st_mode & 077) != 0 || (owner && *owner != info.st_uid))) {
      wrong = foreign(path);
      continue;
    }
    auto file = read_counter_file(path, events);
    if (file && (own || file->snapshot.pid == pid)) {
      files.push_back(std::move(*file));
    } else if (own) {
      return file.error();
    } else {
      wrong = file ? foreign(path) : file.error();
    }
  }
  if (!files.empty()) {
    return files;
  }
  if (wrong) {
    return *wrong;
  }
  const bool runs = kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
  return fail(Errc::invalid_argument,
              runs ? fmt::format("process {} keeps no counters in {}: it has not loaded the plugin "
                                 "or has no connection yet, or its HA_NCCL_COUNTERS_DIR is another "
                                 "one",
                                 pid, directory)
                   : fmt::format("there is no process {}, and none with that number has left "
                                 "counters in {}",
                                 pid, directory));
}

}  // namespace nccl_ha
