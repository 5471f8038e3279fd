// Who we are, for logs and for peers.
#pragma once

#include <string>

namespace nccl_ha {

/// The host's name without its domain, read once; "host" when there is none.
const std::string& host_name();

}  // namespace nccl_ha
