// Errors as values.
//
// The first function that decides that something is wrong makes the Error (and logs it where that
// is useful); everybody above passes it on.
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>

namespace nccl_ha {

/// What kind of error; the plugin's edge maps each to one of NCCL's codes.
enum class Errc : uint8_t {
  ok,
  again,             ///< not now; try again, nothing was changed and nothing is logged
  invalid_argument,  ///< a value from outside is wrong: a setting, a handle, a pointer
  invalid_usage,     ///< the caller broke the contract
  system,            ///< the operating system refused; Error::sys says why
  remote,            ///< the peer, or the network to it
  internal,          ///< a bug of ours
  closed,            ///< the other side ended it in good order
  timed_out,
  no_memory,  ///< a table or queue is full
};
const char* to_text(Errc code);

#if __has_builtin(__builtin_source_location)
using SourceLocation = std::source_location;
#else
/// For clang 14 (fuzzing, clang-tidy), which has no std::source_location beside GCC's library.
class SourceLocation {
 public:
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          uint32_t line = __builtin_LINE()) {
    return SourceLocation(file, line);
  }
  constexpr const char* file_name() const { return file_; }
  constexpr uint32_t line() const { return line_; }

 private:
  constexpr SourceLocation(const char* file, uint32_t line) : file_(file), line_(line) {}
  const char* file_;
  uint32_t line_;
};
#endif

struct Error {
  Errc code = Errc::ok;
  int sys = 0;       ///< errno of the failed call, 0 if none
  std::string what;  ///< what, where and what to do, in one sentence
  SourceLocation where = SourceLocation::current();
  /// `what`, followed by the text of `sys` if there is one, and by what to do about a limit of
  /// the process that was reached.
  std::string message() const;
};

[[nodiscard]] inline Error fail(Errc code, std::string what, int sys = 0,
                                SourceLocation where = SourceLocation::current()) {
  return {code, sys, std::move(what), where};
}

/// A value or an error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(state_); }
  Errc code() const { return ok() ? Errc::ok : error().code; }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }
  Errc code() const { return ok() ? Errc::ok : error_->code; }

 private:
  std::optional<Error> error_;
};

}  // namespace nccl_ha
