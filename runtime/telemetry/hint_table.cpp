#include "runtime/telemetry/hint_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/telemetry/agent_directory.h"

namespace nccl_ha {

namespace {

constexpr uint64_t file_bytes_max = uint64_t{1} << 30;

struct ClosingFile {
  ~ClosingFile() { close(fd); }
  int fd;
};

Error no_table(const char* what) {
  return fail(Errc::invalid_argument, fmt::format("it is no table of hints: {}", what));
}

}  // namespace

const char* to_text(HintReading::State state) {
  switch (state) {
    case HintReading::State::fresh:
      return "fresh";
    case HintReading::State::silent:
      return "silent";
    case HintReading::State::torn:
      return "torn";
    case HintReading::State::foreign:
      return "foreign";
  }
  return "?";
}

Result<void> check_hint_header(std::span<const std::byte> head, uint64_t file_bytes) {
  // Plain words only: the header's atomic comes behind them.
  constexpr size_t plain = offsetof(hint_layout::FileHeader, heartbeat_ns);
  if (head.size() < plain || file_bytes < sizeof(hint_layout::FileHeader)) {
    return no_table("it is too short");
  }
  alignas(hint_layout::FileHeader) std::array<std::byte, sizeof(hint_layout::FileHeader)> copy{};
  std::memcpy(copy.data(), head.data(), plain);
  const auto& header = *reinterpret_cast<const hint_layout::FileHeader*>(copy.data());
  if (header.magic != hint_layout::magic) {
    return no_table("it begins with something else");
  }
  if (header.version != hint_layout::version) {
    return fail(Errc::invalid_argument,
                fmt::format("the table of hints has version {}, this program knows version {}: use "
                            "the nccl-ha and the plugin of one build",
                            header.version, hint_layout::version));
  }
  if (header.header_bytes != sizeof header || header.slot_bytes != sizeof(hint_layout::Slot) ||
      header.file_bytes != file_bytes || file_bytes > file_bytes_max ||
      uint64_t{header.slots} * sizeof(hint_layout::Slot) != file_bytes - sizeof header) {
    return no_table("its length is not what its header says");
  }
  if (header.generation == 0) {
    return no_table("it has no generation");
  }
  return {};
}

Result<std::shared_ptr<const HintTable>> HintTable::open(const std::string& directory,
                                                         uint64_t generation) {
  auto place = AgentDirectory::open(directory);
  if (!place) {
    return place.error();
  }
  const std::string path = directory + "/" + hint_layout::file_name;
  const auto refuse = [&](const std::string& what, int error) {
    return fail(Errc::system, fmt::format("{}: {}", path, what), error);
  };
  const ClosingFile file{
      openat(place->fd(), hint_layout::file_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (file.fd < 0) {
    return refuse("cannot open the table of hints", errno);
  }
  struct stat info {};
  if (fstat(file.fd, &info) != 0) {
    return refuse("cannot look at the table of hints", errno);
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != place->owner() || (info.st_mode & 022) != 0) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: not used, as somebody else than the agent may write to it", path));
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  std::array<std::byte, sizeof(hint_layout::FileHeader)> head{};
  const ssize_t got = pread(file.fd, head.data(), head.size(), 0);
  if (got < 0) {
    return refuse("cannot read the table of hints", errno);
  }
  if (auto good = check_hint_header(std::span(head).first(static_cast<size_t>(got)), bytes);
      !good) {
    return fail(good.error().code, fmt::format("{}: {}", path, good.error().what));
  }
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.fd, 0);
  if (base == MAP_FAILED) {
    return refuse("cannot map the table of hints", errno);
  }
  static_cast<void>(madvise(base, bytes, MADV_DONTFORK));
  std::shared_ptr<const HintTable> table(new HintTable(base, bytes));
  if (generation != 0 && table->generation() != generation) {
    return fail(Errc::again, fmt::format("{}: it is another agent's", path));
  }
  return table;
}

HintTable::HintTable(const void* base, size_t bytes)
    : base_(base),
      bytes_(bytes),
      generation_(header().generation),
      slots_(header().slots),
      pid_(header().pid) {}

HintTable::~HintTable() {
  if (owner_.here()) {
    munmap(const_cast<void*>(base_), bytes_);
  }
}

std::optional<Hint> HintTable::last_hint_of(uint64_t flow) const {
  // With the moment of the last heartbeat as the time, no silence is too long.
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    if (slots_begin()[slot].flow.load(std::memory_order_acquire) == flow) {
      if (const HintReading last = read(slot, flow, heartbeat(), Duration::max()); last.fresh()) {
        return last.hint;
      }
    }
  }
  return std::nullopt;
}

}  // namespace nccl_ha
