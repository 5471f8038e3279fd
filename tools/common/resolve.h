// Addresses of hosts that a user or a launcher names.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

struct FreeAddresses {
  void operator()(addrinfo* first) const { freeaddrinfo(first); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// Looks a name or an address up once, for streams to `port`; brackets around it are left out.
/// Blocks as long as the host's resolver does, some seconds where a name server is silent.  An
/// error names the host and says why; a name that is not there now may be there later.
Result<Addresses> resolve(const std::string& host, uint16_t port);

/// Connects rank `rank` with rank 0, which listens there at last.  Each attempt looks the name up
/// anew: it may come into being only when its host does.  Blocks until `deadline` at most, but for
/// what the host's resolver takes.  A name that is not known is told on standard error, once.
Result<int> dial_root(uint32_t rank, const std::string& host, uint16_t port, Instant deadline);

}  // namespace nccl_ha::tools
