// In the plugin that is built from the copy with mistakes: the environment variable NHA_MUTANT
// names the one that is made, by its number.
#include <cstdlib>

#include "tests/mutants/mutation.h"

namespace nccl_ha {
namespace {

[[maybe_unused]] const bool chosen = [] {
  const char* number = std::getenv("NHA_MUTANT");
  planted = number == nullptr ? Mutation::none : static_cast<Mutation>(std::atoi(number));
  return true;
}();

}  // namespace
}  // namespace nccl_ha
