// In the plugin that is built with NHA_MUTANTS: the environment variable NHA_MUTANT names the
// mistake that is planted, by its number.
#include <cstdlib>

#include "runtime/base/mutation.h"

namespace nccl_ha {
namespace {

[[maybe_unused]] const bool chosen = [] {
  const char* number = std::getenv("NHA_MUTANT");
  planted = number == nullptr ? Mutation::none : static_cast<Mutation>(std::atoi(number));
  return true;
}();

}  // namespace
}  // namespace nccl_ha
