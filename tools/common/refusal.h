// How a subcommand gives up before it has begun.
#pragma once

#include <type_traits>
#include <utility>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// Ends a command with an error, with the command's name in front, and a status.
class Refusal {
 public:
  constexpr Refusal(const char* command, int status) : command_(command), status_(status) {}
  /// Throws Refused (tools/common/refused.h), which run_application() prints, also as JSON where
  /// that was asked for.
  [[noreturn]] void operator()(const Error& error) const;
  /// The value, or the end.
  template <class T>
  T need(Result<T> result) const {
    if (!result) {
      (*this)(result.error());
    }
    if constexpr (!std::is_void_v<T>) {
      return std::move(result).value();
    }
  }

 private:
  const char* command_;
  int status_;
};

}  // namespace nccl_ha::tools
