#include "tests/rig/peers/nccl_nets.h"

#include <dlfcn.h>
#include <errno.h>
#include <fmt/format.h>
#include <glob.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tools/common/elf_symbols.h"

namespace nccl_ha::rig {
namespace {

/// Bytes of an ncclNet_v11_t and of an ncclNet_v12_t.
constexpr uint64_t table_bytes = 176;

/// "store 0 at the argument, return 0" in x86-64 machine code: movl $0,(%rdi); xor %eax,%eax; ret.
constexpr unsigned char return_device_zero[] = {0xc7, 0x07, 0, 0, 0, 0, 0x31, 0xc0, 0xc3};

Result<int> abi_of_release(void* library, const std::string& file) {
  using GetVersion = int (*)(int*);
  auto* get_version = reinterpret_cast<GetVersion>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    return fail(Errc::invalid_argument,
                fmt::format("{} is not NCCL: it has no ncclGetVersion", file));
  }
  const int minor = version / 100 % 100;
  if (version / 10000 == 2 && (minor == 28 || minor == 29)) {
    return 11;
  }
  if (version / 10000 == 2 && minor == 30) {
    return 12;
  }
  return fail(Errc::invalid_argument,
              fmt::format("{} is NCCL {}.{}.{}; its own transports can be used from 2.28 to 2.30 "
                          "only: name another by LIBNCCL",
                          file, version / 10000, minor, version % 100));
}

Result<void> replace_get_device(uintptr_t base, const std::string& file) {
#if defined(__x86_64__)
  const auto symbol = tools::find_single_symbol(file, "cudaGetDevice");
  if (!symbol) {
    return symbol.error();
  }
  if (!symbol->is_function || symbol->size < sizeof(return_device_zero)) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: cudaGetDevice is not the function it was expected to be", file));
  }
  const uintptr_t at = base + symbol->address;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = at / page * page;
  const uintptr_t length = (at + sizeof(return_device_zero) - first + page - 1) / page * page;
  void* pages = reinterpret_cast<void*>(first);
  if (mprotect(pages, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    return fail(Errc::system, fmt::format("cannot make the code of {} writable", file), errno);
  }
  std::memcpy(reinterpret_cast<void*>(at), return_device_zero, sizeof(return_device_zero));
  if (mprotect(pages, length, PROT_READ | PROT_EXEC) != 0) {
    return fail(Errc::system, fmt::format("cannot protect the code of {} again", file), errno);
  }
  return {};
#else
  static_cast<void>(base);
  return fail(Errc::invalid_argument,
              fmt::format("{}: NCCL's own transports can be used on x86-64 only", file));
#endif
}

void add_matches(const std::string& pattern, std::vector<std::string>& out) {
  glob_t matches{};
  if (glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
    // The newest release of several sorts last.
    for (size_t i = matches.gl_pathc; i-- > 0;) {
      out.emplace_back(matches.gl_pathv[i]);
    }
  }
  globfree(&matches);
}

Result<tools::KnownNet> find_in(void* library, const std::string& name) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) {
    return fail(Errc::system, fmt::format("dlinfo: {}", dlerror()));
  }
  const std::string file = map->l_name;
  const auto abi = abi_of_release(library, file);
  if (!abi) {
    return abi.error();
  }
  const auto symbol = tools::find_single_symbol(file, name == "ib" ? "ncclNetIb" : "ncclNetSocket");
  if (!symbol) {
    return symbol.error();
  }
  if (!symbol->is_object || symbol->size != table_bytes) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: {} has {} bytes, expected {}: this release differs", file,
                            symbol->name, symbol->size, table_bytes));
  }
  const auto base = static_cast<uintptr_t>(map->l_addr);
  if (auto replaced = replace_get_device(base, file); !replaced) {
    return replaced.error();
  }
  return tools::KnownNet{reinterpret_cast<const void*>(base + symbol->address), *abi, file};
}

std::vector<std::string> libnccl_candidates() {
  std::vector<std::string> files{"libnccl.so.2"};
  std::vector<std::string> roots;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable); root != nullptr && *root != 0) {
      roots.emplace_back(root);
    }
  }
  roots.insert(roots.end(), {"/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", "/usr/local",
                             "/usr", "/opt/nvidia/nccl"});
  for (const std::string& root : roots) {
    for (const char* folder : {"lib64", "lib", "targets/*/lib", "lib/*-linux-gnu"}) {
      add_matches(fmt::format("{}/{}/libnccl.so.2", root, folder), files);
    }
  }
  return files;
}

Result<tools::KnownNet> open_nccl_net(const std::string& name) {
  const char* asked = std::getenv("LIBNCCL");
  const bool any = asked == nullptr || *asked == 0;
  std::string reason;
  for (const std::string& file : any ? libnccl_candidates() : std::vector<std::string>{asked}) {
    if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return find_in(library, name);
    }
    reason = dlerror();
  }
  if (!any) {
    return fail(Errc::invalid_argument, fmt::format("LIBNCCL: cannot load {}: {}", asked, reason));
  }
  return fail(Errc::invalid_argument,
              fmt::format("'{}' is one of NCCL's own transports, but no libnccl.so.2 was found on "
                          "the loader's path or in the CUDA folders: name it by LIBNCCL",
                          name));
}

}  // namespace

std::optional<Result<tools::KnownNet>> nccl_nets(const std::string& name) {
  if (name != "socket" && name != "ib") {
    return std::nullopt;
  }
  return open_nccl_net(name);
}

}  // namespace nccl_ha::rig
