// The far side of the contract suite: `nccl_ha_contract_peer PORT` serves it, `… quit HOST PORT`
// ends whoever does.  tests/roce_long runs it in a second guest.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/path_harness.h"

int main(int argc, char** argv) {
  if (argc == 2) {
    return nccl_ha::test::serve_side(static_cast<uint16_t>(std::atoi(argv[1])));
  }
  if (argc == 4 && std::strcmp(argv[1], "quit") == 0) {
    nccl_ha::test::end_served_side(argv[2], static_cast<uint16_t>(std::atoi(argv[3])));
    return 0;
  }
  std::fprintf(stderr, "usage: %s PORT | quit HOST PORT\n", argv[0]);
  return 2;
}
