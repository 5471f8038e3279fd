// Where a process keeps its counters and flight recorders: one mapped file, which others can read
// while the process runs, and which is left behind when it is killed
// (runtime/telemetry/counter_layout.h).
//
// Whoever counts holds a CounterBlock.  Without a file, or when the file is full, the block is
// plain memory: it counts all the same, and nobody outside sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/process_life.h"
#include "runtime/base/result.h"
#include "runtime/telemetry/counter_layout.h"
#include "runtime/telemetry/counters.h"

namespace nccl_ha {

/// Blocks and rings of one file.  Any thread, on the control path only: takes a lock.  Lives until
/// the last block of it is given back.
class CounterFile {
 public:
  struct Options {
    std::string directory;    ///< empty: no file
    size_t blocks = 4096;     ///< room for so many
    size_t rings = 0;         ///< flight recorders
    size_t ring_events = 0;   ///< of each; rounded up to a power of two
    size_t caller_rings = 0;  ///< more of them, half as long
  };
  /// All rings of a file together take no more; those without room are plain memory.
  static constexpr size_t rings_bytes_max = 8U << 20;
  /// Of processes that are gone the newest files are kept for readers: so many of them, with no
  /// more bytes than that all together, nor more than an eighth of the file system.
  static constexpr size_t dead_files_max = 8;
  static constexpr uint64_t dead_bytes_max = 16U << 20;

  /// Takes files of this user's dead processes away, but for the newest, and makes one.  Null, with
  /// one line in the log, when there is no room or no right; with an empty directory without one.
  static std::shared_ptr<CounterFile> create(const Options& options);
  /// Also takes the file away.
  ~CounterFile();
  CounterFile(const CounterFile&) = delete;
  CounterFile& operator=(const CounterFile&) = delete;

  /// Takes the file away, unless this is a fork of the process that made it; blocks stay usable.
  void remove();
  const std::string& path() const { return path_; }
  /// All of it, which is written to meanwhile.
  std::span<const std::byte> bytes() const { return {base_, bytes_}; }

  /// A block with all counters 0; null when there is none left.  `label` is cut at
  /// counter_layout::label_bytes.
  counter_layout::Block* acquire(CounterScope scope, uint64_t parent, std::string_view label);
  /// Its last values stay readable until it is used again.  In a fork: nothing.
  void release(counter_layout::Block* block);
  void rename(counter_layout::Block* block, uint64_t parent, std::string_view label);

  struct RingPlace {
    counter_layout::Ring* ring = nullptr;  ///< null: no room
    counter_layout::RingSlot* slots = nullptr;
  };
  enum class RingKind : uint8_t { worker, caller };
  /// `owner` is the id of a block.  It stays taken.
  RingPlace take_ring(uint64_t owner, RingKind kind = RingKind::worker);

 private:
  CounterFile(void* base, size_t bytes, int fd, std::string path, size_t worker_rings);
  static Result<std::shared_ptr<CounterFile>> try_create(const Options& options);
  void write(counter_layout::Block& block, uint64_t id, uint64_t parent, uint64_t what,
             std::string_view label, bool clear);

  std::byte* const base_;
  const size_t bytes_;
  const int fd_;  ///< locked for as long as the process lives
  std::string path_;
  const MadeHere owner_;
  counter_layout::Block* blocks_;
  counter_layout::Ring* rings_;
  size_t ring_count_ = 0;
  const size_t worker_rings_;  ///< the first of them
  ProcessCounters* process_ = nullptr;

  std::mutex mutex_;
  std::deque<uint32_t> free_;  ///< the one that was given back longest ago comes first
  size_t rings_taken_ = 0;     ///< of workers
  size_t caller_rings_taken_ = 0;
  uint64_t last_id_ = 0;
  bool shortage_told_ = false;
  bool removed_ = false;
};

/// Where the blocks of somebody's parts go.
struct CounterPlace {
  std::shared_ptr<CounterFile> file;  ///< null: plain memory
  uint64_t parent = 0;                ///< id of the block that theirs belong to
};

/// The counters of one thing.  Made and given back on the control path, by any thread; counted in
/// by its one owner.  Never empty, but when it was moved from.
template <class Counters>
class CounterBlock {
  static_assert(sizeof(Counters) <= counter_layout::values_max * sizeof(Counter));

 public:
  /// In plain memory.
  CounterBlock() : CounterBlock({}, {}) {}
  CounterBlock(const CounterPlace& place, std::string_view label) : file_(place.file) {
    block_ = file_ ? file_->acquire(Counters::scope, place.parent, label) : nullptr;
    if (block_ == nullptr) {
      plain_ = std::make_unique<Counters>();
      counters_ = plain_.get();
    } else {
      counters_ = reinterpret_cast<Counters*>(block_->values.data());
    }
  }
  ~CounterBlock() { reset(); }
  CounterBlock(CounterBlock&& other) noexcept { *this = std::move(other); }
  CounterBlock& operator=(CounterBlock&& other) noexcept {
    if (this != &other) {
      reset();
      file_ = std::move(other.file_);
      plain_ = std::move(other.plain_);
      block_ = std::exchange(other.block_, nullptr);
      counters_ = std::exchange(other.counters_, nullptr);
    }
    return *this;
  }

  Counters& operator*() const { return *counters_; }
  Counters* operator->() const { return counters_; }
  /// What blocks below this one name as their parent; 0 in plain memory.
  uint64_t id() const { return block_ == nullptr ? 0 : block_->id.load(std::memory_order_relaxed); }
  /// For the blocks below this one.
  CounterPlace place() const { return {file_, id()}; }
  /// For who knows more by now.
  void rename(uint64_t parent, std::string_view label) {
    if (block_ != nullptr) {
      file_->rename(block_, parent, label);
    }
  }

 private:
  void reset() {
    if (block_ != nullptr) {
      file_->release(block_);
    }
    file_.reset();
  }

  std::shared_ptr<CounterFile> file_;
  std::unique_ptr<Counters> plain_;
  counter_layout::Block* block_ = nullptr;
  Counters* counters_ = nullptr;
};

}  // namespace nccl_ha
