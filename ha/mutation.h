// Mistakes that tests plant: see runtime/base/mutation.h.
#pragma once

#include "runtime/base/mutation.h"

namespace nccl_ha::ha {

using nccl_ha::mutated;
using nccl_ha::Mutation;

}  // namespace nccl_ha::ha
