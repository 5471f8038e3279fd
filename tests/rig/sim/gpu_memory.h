// Memory of GPUs: devices reach it, and processors do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace nccl_ha::sim {

class GpuMemory {
 public:
  void add(const void* base, size_t bytes) { ++users_[range(base, bytes)]; }
  void remove(const void* base, size_t bytes) {
    const auto found = users_.find(range(base, bytes));
    if (found != users_.end() && --found->second == 0) {
      users_.erase(found);
    }
  }
  /// A processor reads or writes there.
  void touch(const void* base, size_t bytes) {
    const Range touched = range(base, bytes);
    for (const auto& [known, users] : users_) {
      if (touched.first < known.second && known.first < touched.second) {
        violation_ = "a processor touched memory of a GPU";
      }
    }
  }
  bool any() const { return !users_.empty(); }
  /// Empty: none did.
  const std::string& violation() const { return violation_; }

 private:
  using Range = std::pair<uint64_t, uint64_t>;  ///< its addresses, the end not included
  static Range range(const void* base, size_t bytes) {
    const auto begin = reinterpret_cast<uint64_t>(base);
    return {begin, begin + bytes};
  }

  std::map<Range, size_t> users_;
  std::string violation_;
};

}  // namespace nccl_ha::sim
