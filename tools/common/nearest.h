// The word that was meant.
#pragma once

#include <string>
#include <vector>

namespace nccl_ha::tools {

/// The word of `known` that is nearest to `word`; empty where none is near.  Pure.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

/// "; did you mean X?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace nccl_ha::tools
