#include "actors/connection/state.h"

#include <fmt/format.h>

namespace nccl_ha {

void ConnectionState::on_broken(const char* what) {
  NHA_DASSERT(false, what);
  fail(nccl_ha::fail(Errc::internal,
                     fmt::format("a fault of this program, please report it: {}", what)));
}

}  // namespace nccl_ha
