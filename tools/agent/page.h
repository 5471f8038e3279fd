// The page that the agent serves (tools/agent/page.html), compiled in.
#pragma once

namespace nccl_ha::tools {

const char* agent_page();

}  // namespace nccl_ha::tools
