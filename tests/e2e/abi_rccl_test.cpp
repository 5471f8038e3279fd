// As RCCL takes the plugin (ROCm/rccl, src/plugin/plugin_open.cc and net.cc): by a name with its
// own prefix, the newest table up to v10; a plugin whose init fails is unloaded, and its record
// cleared.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "plugin/nccl_abi.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

/// RCCL's record of a plugin; the build's folder is the loader's path.
class RcclRecord {
 public:
  explicit RcclRecord(const std::string& name) {
    const std::filesystem::path folder = std::filesystem::path(NHA_PLUGIN_FILE).parent_path();
    for (const std::string& file : {name, "librccl-net-" + name + ".so"}) {
      if (handle_ == nullptr) {
        handle_ = dlopen((folder / file).c_str(), RTLD_NOW | RTLD_LOCAL);
      }
    }
    if (handle_ != nullptr) {
      net = static_cast<const abi::NetV10*>(dlsym(handle_, "ncclNetPlugin_v10"));
    }
  }
  ~RcclRecord() {
    if (handle_ != nullptr) {
      EXPECT_EQ(dlclose(handle_), 0);
    }
  }
  RcclRecord(const RcclRecord&) = delete;
  RcclRecord& operator=(const RcclRecord&) = delete;

  const abi::NetV10* net = nullptr;

 private:
  void* handle_ = nullptr;
};

TEST(Rccl, FindsItByItsOwnPrefixAndTakesItAgainAfterAFailedInit) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("HA_NCCL_FABRIC", "nonsense", 1);
  {
    const RcclRecord refused("ha");
    ASSERT_NE(refused.net, nullptr) << dlerror();
    EXPECT_STREQ(refused.net->name, "HA");
    EXPECT_NE(refused.net->init(nullptr, nullptr), abi::NcclResult::success);
  }
  EXPECT_FALSE(plugin_mapped()) << "RCCL's record is clear, and so must be the process";
  setenv("HA_NCCL_FABRIC", "datagram", 1);
  {
    const RcclRecord taken("ha");
    ASSERT_NE(taken.net, nullptr) << dlerror();
    ASSERT_EQ(taken.net->init(nullptr, nullptr), abi::NcclResult::success);
    int devices = 0;
    EXPECT_EQ(taken.net->devices(&devices), abi::NcclResult::success);
    EXPECT_GT(devices, 0);
    // Both names are one library: a process that has both runs one set of threads.
    void* by_nccl = dlopen(NHA_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(by_nccl, nullptr) << dlerror();
    EXPECT_EQ(dlsym(by_nccl, "ncclNetPlugin_v10"), taken.net);
    EXPECT_EQ(dlclose(by_nccl), 0);
  }
  EXPECT_FALSE(plugin_mapped());
  EXPECT_EQ(plugin_threads(), 0U);
  unsetenv("HA_NCCL_FABRIC");
}

}  // namespace
}  // namespace nccl_ha::test
