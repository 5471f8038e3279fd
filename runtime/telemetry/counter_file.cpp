#include "runtime/telemetry/counter_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/host.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/secret.h"
#include "runtime/telemetry/counter_reader.h"
#include "runtime/telemetry/recorder.h"

#ifndef NHA_VERSION
#define NHA_VERSION "unknown"
#endif

namespace nccl_ha {

namespace layout = counter_layout;

namespace {

/// Files of one process: each engine that runs at a time has one.
constexpr uint32_t instances_max = 1024;

int64_t now_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

uint64_t what_of(uint64_t scope, layout::BlockState state) {
  return (scope & UINT32_MAX) | uint64_t{static_cast<uint8_t>(state)} << 32;
}

constexpr uint64_t aligned(uint64_t offset) { return (offset + 63) / 64 * 64; }

template <size_t Size>
void copy_text(std::array<char, Size>& to, std::string_view text) {
  to.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), Size - 1), to.begin());
}

std::string program_name() {
  std::ifstream file("/proc/self/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

/// What the file begins with, and how long it is to be.
struct Plan {
  layout::FileHeader header{};
  std::vector<layout::ScopeEntry> scopes;
  std::vector<layout::CounterEntry> counters;
  std::vector<layout::EventEntry> events;
  std::vector<layout::FieldEntry> fields;
  std::string strings;
  size_t ring_capacity = 0;  ///< of workers
  size_t worker_rings = 0;   ///< the others are callers'
  uint64_t first_slot = 0;   ///< of the first ring

  size_t capacity_of(size_t ring) const {
    return ring < worker_rings ? ring_capacity : caller_capacity();
  }
  size_t caller_capacity() const { return std::max<size_t>(ring_capacity / 2, 1); }
  static uint64_t bytes_of(size_t capacity) { return aligned(capacity * sizeof(layout::RingSlot)); }
  uint64_t bytes_of_rings(size_t workers, size_t callers) const {
    return workers * bytes_of(ring_capacity) + callers * bytes_of(caller_capacity());
  }

  uint32_t text(const char* value) {
    const auto at = static_cast<uint32_t>(strings.size());
    strings.append(value);
    strings.push_back('\0');
    return at;
  }
};

void add_names(Plan& plan) {
  for (const CounterScopeInfo& scope : counter_scopes()) {
    plan.scopes.push_back({plan.text(scope.name), plan.text(scope.help),
                           static_cast<uint32_t>(plan.counters.size()),
                           static_cast<uint32_t>(scope.counters.size())});
    for (const CounterInfo& info : scope.counters) {
      plan.counters.push_back({plan.text(info.name), plan.text(info.unit), plan.text(info.help),
                               static_cast<uint32_t>(info.kind)});
    }
  }
  for (size_t i = 0; i < trace_event_count(); ++i) {
    const TraceEventInfo& info = describe(static_cast<TraceEvent>(i));
    plan.events.push_back({plan.text(info.name), plan.text(info.help),
                           static_cast<uint32_t>(plan.fields.size()),
                           static_cast<uint32_t>(info.fields.size())});
    for (const TraceField& field : info.fields) {
      plan.fields.push_back({plan.text(field.name), plan.text(field.unit), plan.text(field.values),
                             field.word | uint32_t{field.shift} << 8 | uint32_t{field.bits} << 16});
    }
  }
}

Plan make_plan(const CounterFile::Options& options) {
  Plan plan;
  add_names(plan);
  uint64_t end = aligned(sizeof(layout::FileHeader));
  const auto section = [&end](size_t count, size_t entry_bytes) {
    const layout::Section made{end, static_cast<uint32_t>(count),
                               static_cast<uint32_t>(entry_bytes)};
    end = aligned(end + count * entry_bytes);
    return made;
  };
  layout::FileHeader& header = plan.header;
  header.scopes = section(plan.scopes.size(), sizeof(layout::ScopeEntry));
  header.counters = section(plan.counters.size(), sizeof(layout::CounterEntry));
  header.events = section(plan.events.size(), sizeof(layout::EventEntry));
  header.fields = section(plan.fields.size(), sizeof(layout::FieldEntry));
  header.strings = section(plan.strings.size(), 1);
  header.blocks = section(options.blocks + 1, sizeof(layout::Block));  // one is the process's
  plan.ring_capacity = options.ring_events == 0 ? 0 : std::bit_ceil(options.ring_events);
  // A short recorder of each thread tells more than long ones of some.
  while (plan.bytes_of_rings(options.rings, options.caller_rings) > CounterFile::rings_bytes_max &&
         plan.ring_capacity > 1) {
    plan.ring_capacity /= 2;
  }
  size_t callers = 0;
  if (plan.ring_capacity != 0) {
    const uint64_t each = Plan::bytes_of(plan.ring_capacity);
    plan.worker_rings = std::min<size_t>(options.rings, CounterFile::rings_bytes_max / each);
    const uint64_t left = CounterFile::rings_bytes_max - plan.worker_rings * each;
    callers = std::min<size_t>(options.caller_rings, left / Plan::bytes_of(plan.caller_capacity()));
  }
  header.rings = section(plan.worker_rings + callers, sizeof(layout::Ring));
  plan.first_slot = end;
  header.file_bytes = end + plan.bytes_of_rings(plan.worker_rings, callers);
  header.magic = layout::magic;
  header.version = layout::version;
  header.header_bytes = sizeof header;
  header.pid = static_cast<uint32_t>(getpid());
  header.pid_namespace = pid_namespace();
  header.process_start = process_start_ticks();
  header.created_realtime_ns = now_ns(CLOCK_REALTIME);
  header.created_ns = now_ns(CLOCK_MONOTONIC);
  copy_text(header.build, NHA_VERSION);
  copy_text(header.program, program_name());
  copy_text(header.host, host_name());
  header.clock = clock_identity();
  return plan;
}

void write_plan(const Plan& plan, std::byte* base) {
  const auto copy = [base](const layout::Section& section, const void* from) {
    std::memcpy(base + section.offset, from, size_t{section.count} * section.entry_bytes);
  };
  std::memcpy(base, &plan.header, sizeof plan.header);
  copy(plan.header.scopes, plan.scopes.data());
  copy(plan.header.counters, plan.counters.data());
  copy(plan.header.events, plan.events.data());
  copy(plan.header.fields, plan.fields.data());
  copy(plan.header.strings, plan.strings.data());
  auto* rings = reinterpret_cast<layout::Ring*>(base + plan.header.rings.offset);
  uint64_t slots = plan.first_slot;
  for (uint32_t i = 0; i < plan.header.rings.count; ++i) {
    rings[i].capacity = plan.capacity_of(i);
    rings[i].slots_offset = slots;
    slots += Plan::bytes_of(rings[i].capacity);
  }
}

/// Newest first; what is beyond the limits goes.
void clean(const std::string& directory, size_t files_max, uint64_t bytes_max) {
  constexpr int64_t unfinished_ns = 60'000'000'000;  // what takes longer was left
  std::vector<CounterFileFound> dead;
  for (CounterFileFound& found : find_counter_files(directory)) {
    const bool old = now_ns(CLOCK_REALTIME) - found.made_ns > unfinished_ns;
    if (!found.running && (found.good || old)) {
      dead.push_back(std::move(found));
    }
  }
  std::sort(dead.begin(), dead.end(), [](const auto& a, const auto& b) {
    return a.good != b.good ? a.good : a.made_ns > b.made_ns;
  });
  size_t files = 0;
  uint64_t bytes = 0;
  for (const CounterFileFound& found : dead) {
    if (found.good && files < files_max && bytes + found.bytes <= bytes_max) {
      ++files;
      bytes += found.bytes;
    } else {
      ::unlink(found.path.c_str());
    }
  }
}

uint64_t file_system_bytes(const std::string& directory) {
  struct statvfs info {};
  return statvfs(directory.c_str(), &info) == 0 ? uint64_t{info.f_blocks} * info.f_frsize : 0;
}

/// 0, or why the file cannot have so many bytes, all of them there.
int allocate(int fd, uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < bytes) {
    return EFBIG;  // else the kernel would send a signal
  }
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

/// Closes, and unlinks what is not finished, unless released.
struct Unfinished {
  ~Unfinished() {
    close_fd(fd);
    if (!path.empty()) {
      ::unlink(path.c_str());
    }
  }
  int fd = -1;
  std::string path;
};

}  // namespace

std::shared_ptr<CounterFile> CounterFile::create(const Options& options) {
  if (options.directory.empty()) {
    return nullptr;
  }
  clean(options.directory, dead_files_max,
        std::min(dead_bytes_max, file_system_bytes(options.directory) / 8));
  if (const size_t capacity = make_plan(options).ring_capacity; capacity < options.ring_events) {
    NHA_LOG_INFO(
        "each of {} flight recorders keeps {} events instead of {}: they take {} MiB all together "
        "at "
        "most (HA_NCCL_RECORD_EVENTS, HA_NCCL_RECORD_CALLERS, HA_NCCL_PROGRESS_THREADS)",
        options.rings, capacity, options.ring_events, rings_bytes_max >> 20);
  }
  auto file = try_create(options);
  if (!file && file.error().sys == ENOSPC) {
    clean(options.directory, 0, 0);  // the living come first
    file = try_create(options);
  }
  if (!file) {
    NHA_LOG_WARN(
        "counters and flight recorders of this process are in plain memory, where nobody else "
        "sees them: {} (HA_NCCL_COUNTERS_DIR)",
        file.error().message());
    return nullptr;
  }
  return std::move(*file);
}

Result<std::shared_ptr<CounterFile>> CounterFile::try_create(const Options& options) {
  Plan plan = make_plan(options);
  const auto refuse = [&](const std::string& what, int error) {
    return fail(Errc::system, fmt::format("{} in {}", what, options.directory), error);
  };
  Unfinished made;
  const std::string path = fmt::format("{}/nccl-ha-{}-{:016x}.tmp", options.directory,
                                       plan.header.pid, kernel_secrets().draw().told());
  made.fd = make_fd(
      [&] { return open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600); });
  if (made.fd < 0) {
    return refuse("cannot make a file", errno);
  }
  made.path = path;
  // Held until the process ends, however it does.
  if (flock(made.fd, LOCK_EX | LOCK_NB) != 0 || fchmod(made.fd, 0600) != 0) {
    return refuse("cannot lock a file", errno);
  }
  const uint64_t bytes = plan.header.file_bytes;
  if (const int error = allocate(made.fd, bytes); error != 0) {
    return refuse(fmt::format("no room for a file of {} bytes", bytes), error);
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
  if (base == MAP_FAILED) {
    return refuse("cannot map a file", errno);
  }
  static_cast<void>(madvise(base, bytes, MADV_DONTFORK));  // a fork counts nothing here
  // It appears under its name when it is complete.
  std::string name;
  int error = EEXIST;
  for (uint32_t instance = 0; instance < instances_max && error == EEXIST; ++instance) {
    plan.header.instance = instance;
    write_plan(plan, static_cast<std::byte*>(base));
    name = fmt::format("{}/nccl-ha-{}-{}.counters", options.directory, plan.header.pid, instance);
    error = link(path.c_str(), name.c_str()) == 0 ? 0 : errno;
  }
  if (error != 0) {
    munmap(base, bytes);
    return refuse("cannot name a file", error);
  }
  return std::shared_ptr<CounterFile>(
      new CounterFile(base, bytes, std::exchange(made.fd, -1), std::move(name), plan.worker_rings));
}

CounterFile::CounterFile(void* base, size_t bytes, int fd, std::string path, size_t worker_rings)
    : base_(static_cast<std::byte*>(base)),
      bytes_(bytes),
      fd_(fd),
      path_(std::move(path)),
      worker_rings_(worker_rings) {
  const auto& header = *reinterpret_cast<const layout::FileHeader*>(base_);
  blocks_ = reinterpret_cast<layout::Block*>(base_ + header.blocks.offset);
  rings_ = reinterpret_cast<layout::Ring*>(base_ + header.rings.offset);
  ring_count_ = header.rings.count;
  for (uint32_t i = 0; i < header.blocks.count; ++i) {
    free_.push_back(i);
  }
  layout::Block* own =
      acquire(CounterScope::process, 0, fmt::format("{} ({})", header.program.data(), header.pid));
  process_ = reinterpret_cast<ProcessCounters*>(own->values.data());
  process_->blocks_live.set(1);
  process_->blocks_live_most.set(1);
}

CounterFile::~CounterFile() {
  remove();
  if (owner_.here()) {
    munmap(base_, bytes_);
  }
  close_fd(fd_);
}

void CounterFile::remove() {
  if (owner_.here() && !std::exchange(removed_, true)) {
    ::unlink(path_.c_str());
  }
}

void CounterFile::write(layout::Block& block, uint64_t id, uint64_t parent, uint64_t what,
                        std::string_view label, bool clear) {
  constexpr auto relaxed = std::memory_order_relaxed;
  constexpr auto release = std::memory_order_release;
  const uint64_t sequence = block.sequence.load(relaxed);
  block.sequence.store(sequence + 1, relaxed);
  // Every word is a release: a reader who sees it sees the odd sequence too. TSan knows no fences.
  block.id.store(id, release);
  block.parent.store(parent, release);
  block.what.store(what, release);
  std::array<char, layout::label_bytes> text{};
  std::copy_n(label.begin(), std::min(label.size(), text.size()), text.begin());
  const auto words = std::bit_cast<std::array<uint64_t, layout::label_words>>(text);
  for (size_t i = 0; i < words.size(); ++i) {
    block.label[i].store(words[i], release);
  }
  if (clear) {
    block.began_ns.store(static_cast<uint64_t>(now_ns(CLOCK_MONOTONIC)), release);
    for (auto& value : block.values) {
      value.store(0, release);
    }
  }
  block.sequence.store(sequence + 2, release);
}

layout::Block* CounterFile::acquire(CounterScope scope, uint64_t parent, std::string_view label) {
  if (!owner_.here()) {
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    process_->blocks_refused.add();
    if (!std::exchange(shortage_told_, true)) {
      NHA_LOG_WARN(
          "{} has no room for the counters of more connections; they count, but nobody sees it "
          "(HA_NCCL_COUNTERS_BLOCKS)",
          path_);
    }
    return nullptr;
  }
  layout::Block& block = blocks_[free_.front()];
  free_.pop_front();
  write(block, ++last_id_, parent, what_of(static_cast<uint64_t>(scope), layout::BlockState::live),
        label, true);
  if (process_ != nullptr) {
    process_->blocks_live.add();
    process_->blocks_live_most.raise_to(process_->blocks_live);
  }
  return &block;
}

void CounterFile::release(layout::Block* block) {
  if (!owner_.here()) {
    return;
  }
  std::lock_guard lock(mutex_);
  constexpr auto relaxed = std::memory_order_relaxed;
  const uint64_t what = block->what.load(relaxed);
  NHA_ASSERT(what == what_of(what, layout::BlockState::live), "a block is given back twice");
  block->sequence.fetch_add(1, std::memory_order_acq_rel);
  block->what.store(what_of(what, layout::BlockState::ended),
                    std::memory_order_release);  // as in write()
  block->sequence.fetch_add(1, std::memory_order_acq_rel);
  free_.push_back(static_cast<uint32_t>(block - blocks_));
  process_->blocks_live.set(process_->blocks_live - 1);
}

void CounterFile::rename(layout::Block* block, uint64_t parent, std::string_view label) {
  if (!owner_.here()) {
    return;
  }
  std::lock_guard lock(mutex_);
  constexpr auto relaxed = std::memory_order_relaxed;
  write(*block, block->id.load(relaxed), parent, block->what.load(relaxed), label, false);
}

CounterFile::RingPlace CounterFile::take_ring(uint64_t owner, RingKind kind) {
  if (!owner_.here()) {
    return {};
  }
  std::lock_guard lock(mutex_);
  const bool of_worker = kind == RingKind::worker;
  size_t& taken = of_worker ? rings_taken_ : caller_rings_taken_;
  if (taken == (of_worker ? worker_rings_ : ring_count_ - worker_rings_)) {
    (of_worker ? process_->rings_refused : process_->callers_refused).add();
    return {};
  }
  layout::Ring& ring = rings_[(of_worker ? 0 : worker_rings_) + taken++];
  ring.owner.store(owner, std::memory_order_release);
  return {&ring, reinterpret_cast<layout::RingSlot*>(base_ + ring.slots_offset)};
}

}  // namespace nccl_ha
