#include "tools/common/nearest.h"

#include <algorithm>

#include "runtime/base/setting_rules.h"

namespace nccl_ha::tools {

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
  const std::string* nearest = nullptr;
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& one : known) {
    // What only goes on is near, however long.
    const bool begins = word.size() >= 3 && one.starts_with(word);
    const size_t distance = begins ? 1 : edit_distance(word, one);
    if (distance < best && distance < one.size()) {
      best = distance;
      nearest = &one;
    }
  }
  return nearest == nullptr ? std::string() : *nearest;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? nearest : "; did you mean " + nearest + "?";
}

}  // namespace nccl_ha::tools
