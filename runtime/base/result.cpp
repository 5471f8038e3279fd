#include "runtime/base/result.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace nccl_ha {
namespace {

/// What to do about an errno value, where that is the same whatever the call was.
std::string remedy_of(int error) {
  rlimit limit{};
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return " (this process may have " + std::to_string(limit.rlim_cur) +
           "; raise the limit RLIMIT_NOFILE with ulimit -n)";
  }
  if (error == ENFILE) {
    return " (of all processes together; raise fs.file-max with sysctl)";
  }
  return "";
}

}  // namespace

const char* to_text(Errc code) {
  switch (code) {
    case Errc::ok:
      return "ok";
    case Errc::again:
      return "try again";
    case Errc::invalid_argument:
      return "invalid argument";
    case Errc::invalid_usage:
      return "invalid usage";
    case Errc::system:
      return "system error";
    case Errc::remote:
      return "remote error";
    case Errc::internal:
      return "internal error";
    case Errc::closed:
      return "closed";
    case Errc::timed_out:
      return "timed out";
    case Errc::no_memory:
      return "out of room";
  }
  return "unknown";
}

std::string Error::message() const {
  if (sys == 0) {
    return what;
  }
  char buffer[128];
  // The GNU variant: it may return a static text instead of filling the buffer.
  return what + ": " + strerror_r(sys, buffer, sizeof buffer) + remedy_of(sys);
}

}  // namespace nccl_ha
