#include "runtime/base/process_life.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <new>

namespace nccl_ha {
namespace {

constexpr size_t page_max = 65536;  // of the systems that there are
/// One whole page of it, wherever the loader puts it, is this library's alone.
std::array<std::byte, 2 * page_max> room;
constinit std::atomic<uint64_t> uncleared{0};
constinit std::atomic<uint64_t> last_life{0};  // copied by a fork, which counts on

/// Null where the kernel refuses: a sandbox, or Linux before 4.14.
std::atomic<uint64_t>* cleared_in_forks() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (page > page_max) {
    return nullptr;
  }
  const auto begin = (reinterpret_cast<uintptr_t>(room.data()) + page - 1) / page * page;
  auto* place = reinterpret_cast<std::byte*>(begin);
  return madvise(place, page, MADV_WIPEONFORK) == 0
             ? std::launder(reinterpret_cast<std::atomic<uint64_t>*>(place))
             : nullptr;
}

}  // namespace

namespace detail {

constinit std::atomic<std::atomic<uint64_t>*> life{&uncleared};

uint64_t begin_life() noexcept {
  std::atomic<uint64_t>* place = life.load(std::memory_order_acquire);
  if (place == &uncleared) {
    if (std::atomic<uint64_t>* cleared = cleared_in_forks(); cleared != nullptr) {
      place = cleared;
      life.store(place, std::memory_order_release);
    }
  }
  uint64_t known = 0;
  const uint64_t next = last_life.fetch_add(1, std::memory_order_relaxed) + 1;
  return place->compare_exchange_strong(known, next, std::memory_order_relaxed) ? next : known;
}

}  // namespace detail

void end_life() noexcept {
  detail::life.load(std::memory_order_acquire)->store(0, std::memory_order_relaxed);
}

}  // namespace nccl_ha
