// What the relay node of this host says of itself, asked for over its page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// Of the node whose page is at `point` (HA_NCCL_MESH_PAGE).
Result<nlohmann::json> ask_relay(const std::string& point);
void print_relay(const nlohmann::json& status);

}  // namespace nccl_ha::tools
