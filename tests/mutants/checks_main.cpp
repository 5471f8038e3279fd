// Tests of other suites over sources that are built with NHA_MUTANTS: the environment variable
// NHA_MUTANT names the mistake that is planted, by its number.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/base/mutation.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* number = std::getenv("NHA_MUTANT")) {
    nccl_ha::planted = static_cast<nccl_ha::Mutation>(std::atoi(number));
  }
  return RUN_ALL_TESTS();
}
