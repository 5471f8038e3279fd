#include "tests/rig/guests/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <vector>

#include "tests/rig/guests/guest_scripts.h"
#include "tools/common/process.h"

namespace nccl_ha::tools::lab {
namespace {

namespace fs = std::filesystem;

/// What a guest needs beside what the kernel has built in.  crc32_generic must come before
/// rdma_rxe, which asks for the checksum but does not name the module.
constexpr const char* modules[] = {
    "virtio_pci", "9pnet_virtio",  "9p",       "overlay",  "virtio_console",
    "virtio_net", "crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs"};

struct Program {
  const char* name;
  const char* package;
};
constexpr Program programs[] = {{"qemu-system-x86_64", "qemu-system-x86"},
                                {"busybox", "busybox-static"},
                                {"cpio", "cpio"},
                                {"modprobe", "kmod"},
                                {"rdma", "iproute2"},
                                {"apt-get", "apt"},
                                {"dpkg", "dpkg"}};

Result<void> have_programs() {
  utsname machine{};
  uname(&machine);
  if (std::string(machine.machine) != "x86_64") {
    return fail(Errc::system, fmt::format("emulated guests need an x86_64 host, this is {}; "
                                          "`nccl-ha lab run` works here",
                                          machine.machine));
  }
  // modprobe and the like are not on every user's PATH.
  const char* path = getenv("PATH");
  setenv("PATH",
         fmt::format("{}:/usr/sbin:/sbin", path == nullptr ? "/usr/bin:/bin" : path).c_str(), 1);
  std::string missing;
  for (const Program& program : programs) {
    auto found = run_process({"sh", "-c", "command -v \"$0\"", program.name});
    if (!found || found->status != 0) {
      missing += fmt::format(" {}", program.package);
    }
  }
  if (!missing.empty()) {
    return fail(Errc::system, fmt::format("programs are missing; install the packages{}", missing));
  }
  // In the initial file system it stands alone; ldd succeeds on what needs libraries.
  const auto libraries = run_process({"sh", "-c", "ldd \"$(command -v busybox)\""});
  if (libraries && libraries->status == 0) {
    return fail(Errc::system,
                "busybox needs libraries that guests do not have; install the package "
                "busybox-static");
  }
  return {};
}

std::string read_text(const fs::path& file) {
  std::ifstream in(file);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

bool write_text(const fs::path& file, std::string_view text) {
  std::ofstream out(file, std::ios::trunc);
  out << text << std::flush;
  return out.good();
}

std::function<Result<void>()> in_directory(const fs::path& directory) {
  return [directory]() -> Result<void> {
    if (chdir(directory.c_str()) != 0) {
      return fail(Errc::system, fmt::format("cannot change to {}", directory.string()), errno);
    }
    return {};
  };
}

using Words = std::vector<std::string>;

Words with(Words words, const Words& more, const Words& last = {}) {
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), last.begin(), last.end());
  return words;
}

/// The package that Debian's linux-image-amd64 stands for.
Result<std::string> kernel_package(const Words& apt_options) {
  auto depends = must_run(with({"apt-cache"}, apt_options, {"depends", "linux-image-amd64"}));
  if (depends) {
    std::istringstream lines(*depends);
    for (std::string word; lines >> word;) {
      if (word.starts_with("linux-image-")) {
        if (word != "linux-image-amd64") {
          return word;
        }
      }
    }
  }
  return fail(Errc::system, "apt knows no kernel package linux-image-amd64");
}

/// Downloads the package into `folder`.
Result<std::string> download_kernel(const Words& apt_options, const fs::path& folder) {
  auto package = kernel_package(apt_options);
  if (!package) {
    return package.error();
  }
  fmt::print(stderr, "lab: fetching {} to {} (once)\n", *package, folder.parent_path().string());
  auto fetched = must_run(with({"apt-get", "-q"}, apt_options, {"download", *package}), "",
                          in_directory(folder));
  return fetched ? package : fetched.error();
}

/// The same with package lists of our own: the system's may be missing or too old, and are not ours
/// to change.
Result<std::string> download_kernel_anew(const fs::path& cache, const fs::path& folder) {
  const fs::path lists = cache / "apt";
  std::error_code error;
  fs::create_directories(lists / "lists/partial", error);
  fs::create_directories(lists / "cache/archives/partial", error);
  const Words options = {"-o", fmt::format("Dir::State::lists={}/lists", lists.string()), "-o",
                         fmt::format("Dir::Cache={}/cache", lists.string())};
  auto updated = must_run(with({"apt-get", "-q"}, options, {"update"}));
  auto package = updated ? download_kernel(options, folder) : updated.error();
  fs::remove_all(lists, error);
  return package;
}

/// Unpacks the kernel to cache/kernel.  A directory is moved there when it is whole, so that an
/// interrupted fetch leaves nothing that looks like one.
Result<void> fetch_kernel(const fs::path& cache) {
  const fs::path fresh = cache / "kernel.new";
  std::error_code error;
  fs::remove_all(fresh, error);
  fs::create_directories(fresh, error);
  auto package = download_kernel({}, fresh);
  if (!package) {
    package = download_kernel_anew(cache, fresh);
  }
  if (!package) {
    return fail(Errc::system,
                fmt::format("cannot fetch a kernel for guests: {}", package.error().message()));
  }
  for (const auto& entry : fs::directory_iterator(fresh, error)) {
    if (entry.path().extension() != ".deb") {
      continue;
    }
    auto unpacked = must_run({"dpkg", "-x", entry.path(), fresh});
    if (!unpacked) {
      return unpacked.error();
    }
    fs::remove(entry.path(), error);
    break;
  }
  for (const auto& entry : fs::directory_iterator(fresh / "lib/modules", error)) {
    const std::string release = entry.path().filename();
    if (auto made = must_run({"depmod", "-b", fresh, release}); !made) {
      return made.error();
    }
    if (!write_text(fresh / "release", release)) {
      return fail(Errc::system, fmt::format("cannot write below {}", fresh.string()), errno);
    }
    fs::remove_all(cache / "kernel", error);
    fs::rename(fresh, cache / "kernel", error);
    return error ? Result<void>(
                       fail(Errc::system, "cannot move the kernel into place: " + error.message()))
                 : Result<void>();
  }
  return fail(Errc::system, fmt::format("package {} holds no modules", *package));
}

/// The files of all modules, each after those that it needs.
Result<std::vector<fs::path>> module_files(const fs::path& root, const std::string& release) {
  std::vector<fs::path> files;
  std::set<fs::path> seen;
  for (const char* module : modules) {
    auto shown = must_run({"modprobe", "-d", root, "-S", release, "--show-depends", module});
    if (!shown) {
      return shown.error();
    }
    std::istringstream lines(*shown);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string action;
      std::string file;
      words >> action >> file;
      if (action == "insmod" && seen.insert(file).second) {
        files.emplace_back(file);
      }
    }
  }
  return files;
}

Result<void> make_initramfs(const fs::path& cache, const std::string& release) {
  const fs::path tree = cache / "initramfs.tree";
  std::error_code error;
  fs::remove_all(tree, error);
  for (const char* folder : {"bin", "proc", "sys", "dev", "lower", "layer", "root", "modules"}) {
    fs::create_directories(tree / folder, error);
  }
  auto files = module_files(cache / "kernel", release);
  auto busybox = must_run({"sh", "-c", "command -v busybox"});
  if (!files || !busybox) {
    return files ? busybox.error() : files.error();
  }
  std::string order;
  for (const fs::path& file : *files) {
    fs::copy_file(file, tree / "modules" / file.filename(), error);
    order += file.filename().string() + "\n";
  }
  fs::copy_file(busybox->substr(0, busybox->find('\n')), tree / "bin/busybox", error);
  fs::create_symlink("busybox", tree / "bin/sh", error);
  if (error || !write_text(tree / "modules/order", order) ||
      !write_text(tree / "init", guest_init) || !write_text(tree / "agent", guest_agent)) {
    return fail(Errc::system, fmt::format("cannot fill {}: {}", tree.string(), error.message()));
  }
  fs::permissions(tree / "init", fs::perms::owner_all, error);
  auto packed = must_run({"sh", "-c", "find . | cpio --quiet -o -H newc -R 0:0 >../initramfs.new"},
                         "", in_directory(tree));
  if (!packed) {
    return packed.error();
  }
  fs::rename(cache / "initramfs.new", cache / "initramfs", error);
  fs::remove_all(tree, error);
  return {};
}

}  // namespace

std::string default_cache() {
  const char* cache = getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') {
    return std::string(cache) + "/nccl-ha-lab";
  }
  const char* home = getenv("HOME");
  return std::string(home != nullptr && *home == '/' ? home : "/var/tmp") + "/.cache/nccl-ha-lab";
}

Result<KernelImage> prepare_kernel(const std::string& cache_name) {
  if (auto have = have_programs(); !have) {
    return have.error();
  }
  std::error_code error;
  const fs::path cache = fs::absolute(cache_name, error);
  fs::create_directories(cache, error);
  const Fd lock(open((cache / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || flock(lock.get(), LOCK_EX) != 0) {
    return fail(Errc::system, fmt::format("cannot use {} as a cache", cache.string()), errno);
  }
  if (!fs::exists(cache / "kernel/release")) {
    if (auto fetched = fetch_kernel(cache); !fetched) {
      return fetched.error();
    }
  }
  const std::string release = read_text(cache / "kernel/release");
  // An initramfs of another version of this program, or of another kernel, is of no use.
  std::string key = release;
  for (const char* module : modules) {
    key += fmt::format(" {}", module);
  }
  key += fmt::format("\n{}\n{}", guest_init, guest_agent);
  if (!fs::exists(cache / "initramfs") || read_text(cache / "initramfs.key") != key) {
    fs::remove(cache / "initramfs.key", error);
    if (auto made = make_initramfs(cache, release); !made) {
      return made.error();
    }
    if (!write_text(cache / "initramfs.key", key)) {
      return fail(Errc::system, fmt::format("cannot write below {}", cache.string()), errno);
    }
  }
  return KernelImage{cache / "kernel/boot" / ("vmlinuz-" + release), cache / "initramfs"};
}

}  // namespace nccl_ha::tools::lab
