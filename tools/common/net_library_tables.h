// Turning the tables of the ABI's versions into one set of calls.
#pragma once

#include "tools/common/net_library.h"

namespace nccl_ha::tools {

/// The calls of an ncclNet_vN_t; a version out of range gives a set whose `missing` says so.
NetApi::Calls calls_of(const void* table, int version);

/// The logger handed to every plugin (set_plugin_log says where its lines go).
abi::Logger plugin_logger();

}  // namespace nccl_ha::tools
