#include "plugin/edge.h"

#include <cstddef>
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

const char* intern(const std::string& text) {
  std::lock_guard lock(texts_mutex);
  return texts().insert(text).first->c_str();
}

void forget_interned() {
  std::lock_guard lock(texts_mutex);
  texts().clear();
}

}  // namespace nccl_ha::plugin
