#include "plugin/edge.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <set>

namespace nccl_ha::plugin {

abi::NcclResult to_nccl(Errc code) {
  switch (code) {
    case Errc::ok:
      return abi::NcclResult::success;
    case Errc::invalid_argument:
      return abi::NcclResult::invalid_argument;
    case Errc::invalid_usage:
      return abi::NcclResult::invalid_usage;
    case Errc::remote:
    case Errc::closed:
    case Errc::timed_out:
      return abi::NcclResult::remote_error;
    case Errc::system:
    case Errc::no_memory:
      return abi::NcclResult::system_error;
    case Errc::again:  // never leaves the runtime
    case Errc::internal:
      break;
  }
  return abi::NcclResult::internal_error;
}

abi::NcclResult report(const Error& error) {
  NHA_LOG_WARN("{}", error.message());
  return to_nccl(error.code);
}

namespace {

constinit std::mutex texts_mutex;

// Has no destructor of its own: the pointers handed out outlive those of every static object.
std::set<std::string>& texts() {
  alignas(std::set<std::string>) static std::byte storage[sizeof(std::set<std::string>)];
  static auto* set = new (storage) std::set<std::string>;
  return *set;
}

}  // namespace

void report_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    NHA_LOG_ERROR(
        "out of memory; limits are RLIMIT_AS (ulimit -v) and a control group's memory.max");
  } catch (const std::exception& error) {
    NHA_LOG_ERROR("internal error: {}", error.what());
  } catch (...) {
    NHA_LOG_ERROR("internal error of unknown kind");
  }
}

constinit std::atomic<uint64_t> state_owner{0};

void refuse_fork(const char* call) noexcept {
  static constinit std::atomic<uint64_t> told{0};  // to which process
  if (told.exchange(process_life()) == process_life()) {
    return;
  }
  std::array<char, 512> line{};
  const int length = std::snprintf(
      line.data(), line.size(),
      "nccl-ha: error: %s: process %d was forked after NCCL was initialised; connections and "
      "devices belong to its parent, which goes on. Fork before NCCL is initialised, or start a "
      "new program (Python: multiprocessing with \"spawn\")\n",
      call, getpid());
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), static_cast<size_t>(std::max(length, 0)));
}

const char* intern(const std::string& text) {
  std::lock_guard lock(texts_mutex);
  return texts().insert(text).first->c_str();
}

void forget_interned() {
  std::lock_guard lock(texts_mutex);
  texts().clear();
}

}  // namespace nccl_ha::plugin
