// How a subcommand gives up before it has begun.
#pragma once

#include <utility>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// Prints an error with the command's name in front, and ends the command with a status.
class Refusal {
 public:
  constexpr Refusal(const char* command, int status) : command_(command), status_(status) {}
  /// Throws CLI::RuntimeError, which main() turns into the status.
  [[noreturn]] void operator()(const Error& error) const;
  /// The value, or the end.
  template <class T>
  T need(Result<T> result) const {
    if (!result) {
      (*this)(result.error());
    }
    return std::move(result).value();
  }

 private:
  const char* command_;
  int status_;
};

}  // namespace nccl_ha::tools
