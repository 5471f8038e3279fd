#include "plugin/edge.h"

#include <mutex>
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

const char* intern(const std::string& text) {
  // Never destroyed, so the pointers outlive every static destructor.
  static auto* mutex = new std::mutex;
  static auto* texts = new std::set<std::string>;
  std::lock_guard lock(*mutex);
  return texts->insert(text).first->c_str();
}

}  // namespace nccl_ha::plugin
