// Tests of other suites over the copy of the product with mistakes: the environment variable
// NHA_MUTANT names the one that is made, by its number.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/mutants/mutation.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* number = std::getenv("NHA_MUTANT")) {
    nccl_ha::planted = static_cast<nccl_ha::Mutation>(std::atoi(number));
  }
  return RUN_ALL_TESTS();
}
