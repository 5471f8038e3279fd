// The two scripts that run inside an emulated machine.
#pragma once

#include <string_view>

namespace nccl_ha::tools::lab {

/// /init of the initramfs: loads the modules, mounts the host's files under a layer in memory,
/// hands over to the agent, and switches the machine off afterwards.
extern const std::string_view guest_init;

/// Runs as root on the mounted files: sets interfaces up as the kernel's command line says, then
/// takes commands from the lab.
///
/// It talks over three virtio-serial ports.  `ctl` carries lines both ways: "ready" or "broken WHY"
/// from the guest, "TOKEN SHELL-TEXT" to it, one for each job.  `out` and `err` carry what the jobs
/// write, and at the end of each a zero byte, its token, a space, its status and a newline.
extern const std::string_view guest_agent;

}  // namespace nccl_ha::tools::lab
