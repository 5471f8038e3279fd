// Threads that the plugin adds to a process that is not its own.
#pragma once

namespace nccl_ha {

/// Called by such a thread before all else: the job's signals go to the job's threads.  `name` is
/// cut at 15 characters.
void prepare_thread(const char* name);

/// The calling thread runs when others that want the same processor leave it some: about a tenth of
/// what one of them gets.  Where the system refuses that, nothing changes.
void give_precedence();

/// The shared library that this code is in stays in memory until the process ends, so that a
/// thread of it may be left behind.  Any thread; takes the loader's lock.  False: it cannot be
/// kept, as the library is being unloaded.
bool keep_code_loaded();

}  // namespace nccl_ha
