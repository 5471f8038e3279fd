// Where the system call for random bytes is refused, as by a container's filter.
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <set>

#include "runtime/base/keyed_hash.h"
#include "runtime/base/random.h"
#include "runtime/base/secret.h"
#include "tests/support/in_fork.h"

namespace nccl_ha {
namespace {

using test::in_fork;

/// From now on getrandom(2) fails in this process.
bool refuse_getrandom() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(steps)), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
         syscall(SYS_getrandom, nullptr, 0, 0) < 0 && errno == EPERM;
}

/// Nothing can be opened any more either.
bool refuse_files() {
  const rlimit none{0, 0};
  return setrlimit(RLIMIT_NOFILE, &none) == 0;
}

bool differ() {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    seen.insert(kernel_secrets().draw().told());
  }
  return seen.size() == 1000;
}

TEST(OsRandom, IsReadFromTheDeviceWhereTheCallIsRefused) {
  EXPECT_EQ(in_fork([] {
              uint64_t value[2] = {};
              return refuse_getrandom() && os_random(value, sizeof value).ok() &&
                     value[0] != value[1] && differ();
            }),
            0);
}

TEST(OsRandom, WithoutEitherIsAnErrorForSecretsAndNumbersGoOn) {
  EXPECT_EQ(in_fork([] {
              uint64_t value = 0;
              if (!refuse_getrandom() || !refuse_files()) {
                return false;
              }
              const auto got = os_random(&value, sizeof value);
              const auto says = [&](const char* part) {
                return got.error().message().find(part) != std::string::npos;
              };
              return !got && says("getrandom(2) is refused (Operation not permitted)") &&
                     says("/dev/urandom") && differ();
            }),
            0);
}

TEST(OsRandom, HashesNeedNone) {
  const HashKey key{};
  const std::string_view text = "text";
  const auto tag = make_tag(key, "purpose", std::as_bytes(std::span(text)));
  EXPECT_EQ(in_fork([&] {
              return refuse_getrandom() && refuse_files() &&
                     same_tag(tag, make_tag(key, "purpose", std::as_bytes(std::span(text))));
            }),
            0);
}

}  // namespace
}  // namespace nccl_ha
