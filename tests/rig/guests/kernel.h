// A kernel with Soft-RoCE for emulated machines: fetched as a package, unpacked, never installed.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::tools::lab {

struct KernelImage {
  std::filesystem::path kernel;
  std::filesystem::path initramfs;
};

/// $XDG_CACHE_HOME/nccl-ha-lab, or the same in ~/.cache.
std::string default_cache();

/// Gives a bootable kernel out of `cache`, filling it when that is needed: with the newest kernel
/// package that apt knows, and an initramfs made of its modules.  Several processes may call it.
Result<KernelImage> prepare_kernel(const std::string& cache);

}  // namespace nccl_ha::tools::lab
