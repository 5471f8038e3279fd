// A plugin that is another one (NHA_ONE_ABI_PLUGIN) with only one version of the ABI.  NCCL takes
// the newest that it finds, so that this is how it is brought to use an older one, through its own
// adaptors.  Compiled once per NHA_ABI.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl_net.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define NHA_JOIN_(a, b, c) a##b##c
#define NHA_JOIN(a, b, c) NHA_JOIN_(a, b, c)
#define NHA_TEXT_(a) #a
#define NHA_TEXT(a) NHA_TEXT_(a)
#define NHA_TYPE NHA_JOIN(ncclNet_v, NHA_ABI, _t)
#define NHA_TABLE NHA_JOIN(ncclNetPlugin_v, NHA_ABI, )

extern "C" __attribute__((visibility("default"))) NHA_TYPE NHA_TABLE;
NHA_TYPE NHA_TABLE;

namespace {

class Load {
 public:
  Load() {
    const char* path = std::getenv("NHA_ONE_ABI_PLUGIN");
    library_ = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    const void* table = library_ != nullptr ? dlsym(library_, NHA_TEXT(NHA_TABLE)) : nullptr;
    if (table == nullptr) {
      std::fprintf(stderr, "one_abi: no %s in NHA_ONE_ABI_PLUGIN=%s\n", NHA_TEXT(NHA_TABLE),
                   path != nullptr ? path : "");
      std::abort();
    }
    std::memcpy(static_cast<void*>(&NHA_TABLE), table, sizeof NHA_TABLE);
  }
  ~Load() { dlclose(library_); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  void* library_ = nullptr;
};

const Load load;

}  // namespace
