#include "tests/nccl/emulated/held.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace nccl_ha::emulated {
namespace {

size_t entries_of(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

}  // namespace

bool Held::more_than(const Held& earlier) const {
  return descriptors > earlier.descriptors || mappings > earlier.mappings ||
         threads > earlier.threads;
}

void Held::allow_for_pool(const Held& other) {
  mappings = std::min(mappings, other.mappings);
  threads = std::min(threads, other.threads);
}

std::string Held::text() const {
  return std::to_string(descriptors) + " descriptors, " + std::to_string(mappings) + " mappings, " +
         std::to_string(threads) + " threads";
}

Held held_by_process() {
  malloc_trim(0);  // what the C library keeps for later is no growth
  Held held;
  held.descriptors = entries_of("/proc/self/fd");
  held.threads = entries_of("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // Addresses of freed GPU memory stay taken for a while, so that late accesses fault (cuda/).
    held.mappings += line.find(" ---p ") == std::string::npos ? 1 : 0;
  }
  return held;
}

}  // namespace nccl_ha::emulated
