// What the kernel is asked about TCP sockets that others read and write.
#pragma once

#include "runtime/base/clock.h"

namespace nccl_ha {

/// Nothing waits for more to be sent, and a peer whose host confirms nothing for `unanswered`, or
/// is not there, ends the stream with an error.
void tune_tcp(int fd, Duration unanswered);
/// The peer's host has confirmed all that was written.
bool all_confirmed(int fd);

}  // namespace nccl_ha
