// Whether there is room for what libuv opens and watches: where there is none it ends the process,
// which no plugin may do to its host.
#pragma once

#include "runtime/base/result.h"

namespace nccl_ha {

/// Opens what uv_loop_init() opens, in the same numbers, and closes it again: the first loop needs
/// a descriptor for its signal pipe. Another thread may still take the last descriptors in between.
/// Any thread.
Result<void> probe_uv_loop();

/// The set of descriptors of a loop has `fd` from now on, of which libuv then says what for: so the
/// kernel can refuse it here (fs.epoll.max_user_watches), and not any more when the loop runs.  It
/// stays there until it is closed, or uv_poll_stop() or uv_poll_start() take it out.  0, or an
/// errno value.
int hold_in_set(int set, int fd);
/// For people.
Error not_held(int error);

}  // namespace nccl_ha
