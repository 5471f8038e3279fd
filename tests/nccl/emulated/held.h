// What this process holds of the system, so that cycles can be seen to leave nothing behind.
#pragma once

#include <cstddef>
#include <string>

namespace nccl_ha::emulated {

struct Held {
  size_t descriptors = 0;
  size_t mappings = 0;
  size_t threads = 0;

  bool more_than(const Held& earlier) const;
  /// Threads of a pool, and their stacks, vary from one moment to the next: the lesser number of
  /// both counts.
  void allow_for_pool(const Held& other);
  std::string text() const;
};

Held held_by_process();

}  // namespace nccl_ha::emulated
