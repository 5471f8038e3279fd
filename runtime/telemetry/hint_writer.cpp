#include "runtime/telemetry/hint_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "runtime/base/check.h"
#include "runtime/base/host.h"
#include "runtime/base/secret.h"

namespace nccl_ha {

namespace {

struct UnfinishedTable {
  ~UnfinishedTable() {
    if (fd >= 0) {
      close(fd);
      unlinkat(directory, name.c_str(), 0);
    }
  }
  int directory;
  std::string name;
  int fd;
};

}  // namespace

Result<std::unique_ptr<HintWriter>> HintWriter::create(const AgentDirectory& directory,
                                                       const Options& options, Instant now) {
  const auto refuse = [&](const char* what, int error) {
    return fail(Errc::system, fmt::format("{} in {}", what, directory.path()), error);
  };
  const std::string name = fmt::format("{}.{}.tmp", hint_layout::file_name, getpid());
  unlinkat(directory.fd(), name.c_str(), 0);  // of a process with this number that was killed
  UnfinishedTable made{directory.fd(), name,
                       openat(directory.fd(), name.c_str(),
                              O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (made.fd < 0) {
    return refuse("cannot make the table of hints", errno);
  }
  const size_t bytes =
      sizeof(hint_layout::FileHeader) + size_t{options.slots} * sizeof(hint_layout::Slot);
  if (const int error = posix_fallocate(made.fd, 0, static_cast<off_t>(bytes)); error != 0) {
    return refuse("no room for the table of hints", error);
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
  if (base == MAP_FAILED) {
    return refuse("cannot map the table of hints", errno);
  }
  auto* header = new (base) hint_layout::FileHeader{};
  header->magic = hint_layout::magic;
  header->version = hint_layout::version;
  header->header_bytes = sizeof *header;
  header->file_bytes = bytes;
  header->generation = kernel_secrets().draw().told() | 1U;  // never 0
  header->created_ns = now.time_since_epoch().count();
  header->process_start = process_start_ticks();
  header->pid = static_cast<uint32_t>(getpid());
  header->slots = options.slots;
  header->slot_bytes = sizeof(hint_layout::Slot);
  header->heartbeat_ms = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(options.heartbeat).count());
  std::unique_ptr<HintWriter> writer(new HintWriter(base, bytes));
  writer->give_heartbeat(now);
  // Others may read it, whatever the creation mask says; it appears when it is complete.
  if (fchmod(made.fd, 0644) != 0 ||
      renameat(directory.fd(), name.c_str(), directory.fd(), hint_layout::file_name) != 0) {
    return refuse("cannot publish the table of hints", errno);
  }
  close(made.fd);
  made.fd = -1;
  return writer;
}

HintWriter::HintWriter(void* base, size_t bytes)
    : header_(static_cast<hint_layout::FileHeader*>(base)),
      slots_(reinterpret_cast<hint_layout::Slot*>(static_cast<std::byte*>(base) +
                                                  sizeof(hint_layout::FileHeader))),
      bytes_(bytes) {}

HintWriter::~HintWriter() { munmap(header_, bytes_); }

void HintWriter::write(uint32_t slot, uint64_t flow, const Hint& hint, Instant now) {
  NHA_ASSERT(slot < slots(), "a hint has a slot of its table");
  hint_layout::Slot& at = slots_[slot];
  constexpr auto release = std::memory_order_release;
  const uint64_t sequence = at.sequence.load(std::memory_order_relaxed);
  at.sequence.store(sequence + 1, std::memory_order_relaxed);
  // Every word is a release: a reader who sees it sees the odd sequence too. TSan knows no fences.
  at.flow.store(flow, release);
  at.hint.store(hint.share | uint64_t{hint.flags} << 32, release);
  at.changed_ns.store(static_cast<uint64_t>(now.time_since_epoch().count()), release);
  at.sequence.store(sequence + 2, release);
}

void HintWriter::give_heartbeat(Instant now) {
  header_->heartbeat_ns.store(static_cast<uint64_t>(now.time_since_epoch().count()),
                              std::memory_order_release);
}

}  // namespace nccl_ha
