// See path_verbs.cpp.
#pragma once

#include "tests/support/path_harness.h"

namespace nccl_ha::test {

std::unique_ptr<PathSide> make_rc_side(size_t index);

}  // namespace nccl_ha::test
