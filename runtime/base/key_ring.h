// Keys that hosts have in common, in a file that only its owner may read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace nccl_ha {

/// Several, by numbers, so that they can be changed one after the other.
class KeyRing {
 public:
  static constexpr size_t keys_max = 16;
  using Key = std::array<std::byte, 32>;

  /// A file of lines "NUMBER KEY", a number from 1 on and 64 hexadecimal digits; # begins a
  /// comment.  Others than its owner, this user or root, must not be able to read it.
  static Result<KeyRing> read(const std::string& path);
  /// `path`: for messages.
  static Result<KeyRing> parse(std::string_view text, const std::string& path);

  void add(uint32_t number, const Key& key) {
    first_ = keys_.empty() ? number : first_;
    keys_[number] = key;
  }
  const Key* find(uint32_t number) const {
    const auto found = keys_.find(number);
    return found == keys_.end() ? nullptr : &found->second;
  }
  size_t size() const { return keys_.size(); }
  /// Calls `take(number, key)` for each, by number.
  template <class Take>
  void each(Take&& take) const {
    for (const auto& [number, key] : keys_) {
      take(number, key);
    }
  }
  /// The one that comes first in the file; 0: there is none.
  uint32_t first() const { return first_; }
  /// The one with the largest number; 0: there is none.
  uint32_t newest() const { return keys_.empty() ? 0 : keys_.rbegin()->first; }

 private:
  std::map<uint32_t, Key> keys_;
  uint32_t first_ = 0;
};

}  // namespace nccl_ha
