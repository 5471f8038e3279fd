// What a rank process tells the supervisor of its host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace nccl_ha::tools {

struct RankMessage {
  size_t group = 0;
  uint32_t rank = 0;
  nlohmann::json body;
};

}  // namespace nccl_ha::tools
