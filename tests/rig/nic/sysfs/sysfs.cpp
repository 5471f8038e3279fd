// What sysfs says of the emulated devices, for LD_PRELOAD: libibverbs alone cannot show a process
// files.  Paths below /sys/class/infiniband are answered from what the emulated libibverbs says;
// all other paths go to the C library.
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#undef ibv_get_device_list

namespace {

constexpr std::string_view folder = "/sys/class/infiniband/";

enum class Kind { not_ours, missing, text, refused, link };
struct Answer {
  Kind kind = Kind::not_ours;
  std::string text;
  std::string device = {};  ///< who reads hears when that is gone
};

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

/// The emulated libibverbs, of which this knows no more than any user.
template <class Function>
Function verbs(const char* name, const char* version = "IBVERBS_1.1") {
  static void* library = dlopen("libibverbs.so.1", RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlvsym(library, name, version));
}

/// Opened once, and never closed.
ibv_context* context_of(std::string_view name, int* number) {
  static std::array<ibv_context*, 8> opened{};
  const auto list_of = verbs<ibv_device** (*)(int*)>("ibv_get_device_list");
  const auto open = verbs<ibv_context* (*)(ibv_device*)>("ibv_open_device");
  if (list_of == nullptr || open == nullptr) {
    return nullptr;
  }
  int count = 0;
  ibv_device** list = list_of(&count);
  ibv_context* found = nullptr;
  for (int i = 0; i < count; ++i) {
    *number = atoi(list[i]->name + strlen("mlx5_"));
    if (name == list[i]->name) {
      ibv_context*& context = opened[static_cast<size_t>(*number)];
      context = context == nullptr ? open(list[i]) : context;
      found = context;
      break;
    }
  }
  verbs<void (*)(ibv_device**)>("ibv_free_device_list")(list);
  return found;
}

/// A switch of NHA_NIC, which only sysfs shows.
bool set(const char* name) {
  const char* settings = getenv("NHA_NIC");
  const std::string all = std::string(",") + (settings == nullptr ? "" : settings) + ",";
  return all.find(std::string(",") + name + ",") != std::string::npos;
}

Answer about_gid(ibv_context* context, unsigned port, const char* what, unsigned index) {
  std::array<ibv_gid_entry, 64> entries{};
  const auto table = verbs<ssize_t (*)(ibv_context*, ibv_gid_entry*, size_t, uint32_t, size_t)>(
      "_ibv_query_gid_table", "IBVERBS_1.11");
  const ssize_t count = table(context, entries.data(), entries.size(), 0, sizeof entries[0]);
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port || entry.gid_index != index) {
      continue;
    }
    char name[IF_NAMESIZE] = "";
    const bool foreign =
        entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, name) == nullptr;
    if (foreign && !set("foreign_shown")) {  // of another network namespace: the kernel answers so
      return {Kind::refused, ""};
    }
    if (strcmp(what, "types") == 0) {
      return {Kind::text, entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2\n" : "IB/RoCE v1\n"};
    }
    return name[0] == '\0' ? Answer{Kind::refused, ""}
                           : Answer{Kind::text, name + std::string("\n")};
  }
  return {Kind::refused, ""};  // an empty entry
}

Answer ask(const char* path) {
  std::string_view rest = path == nullptr ? "" : path;
  if (rest.substr(0, folder.size()) != folder) {
    return {};
  }
  rest.remove_prefix(folder.size());
  const size_t slash = rest.find('/');
  int number = 0;
  ibv_context* context = context_of(rest.substr(0, slash), &number);
  if (context == nullptr || slash == std::string_view::npos) {
    return {Kind::missing, ""};
  }
  const std::string file(rest.substr(slash + 1));
  // Each device in a slot of its own.
  const std::string bus = "4" + std::to_string(number);
  const bool sub_function = set("sub_functions");
  if (file == "device") {
    return {Kind::link, "/sys/devices/pci0000:" + bus + "/0000:" + bus + ":00.0" +
                            (sub_function ? "/mlx5_core.sf.2" : "")};
  }
  if (file == "device/subsystem") {
    return {Kind::link, sub_function ? "/sys/bus/auxiliary" : "/sys/bus/pci"};
  }
  if (file == "node_type") {
    return {Kind::text, "1: CA\n", std::string(rest.substr(0, slash))};
  }
  if (file == "node_guid") {
    const auto guid_of = verbs<unsigned long (*)(const char*)>("nha_nic_guid", "NHA_NIC");
    const unsigned long guid = guid_of(std::string(rest.substr(0, slash)).c_str());
    char text[32];
    snprintf(text, sizeof text, "%04lx:%04lx:%04lx:%04lx\n", guid >> 48, guid >> 32 & 0xFFFF,
             guid >> 16 & 0xFFFF, guid & 0xFFFF);
    return {Kind::text, text};
  }
  if (file == "device/numa_node") {
    return {Kind::text, "-1\n"};
  }
  unsigned port = 0;
  unsigned index = 0;
  int length = 0;
  char what[8] = "";
  if (sscanf(file.c_str(), "ports/%u/rate%n", &port, &length) == 1 &&
      static_cast<size_t>(length) == file.size()) {
    return {Kind::text, set("xdr") ? "800 Gb/sec (4X XDR)\n" : "400 Gb/sec (4X NDR)\n"};
  }
  if (sscanf(file.c_str(), "ports/%u/gid_attrs/%5[a-z]/%u", &port, what, &index) == 3) {
    return about_gid(context, port, what, index);
  }
  return {Kind::missing, ""};
}

/// Attributes that were opened: of which device, and how often that had come back by then.
class Attributes {
 public:
  void add(int fd, const std::string& device) {
    const auto generation = verbs<unsigned (*)(const char*)>("nha_nic_generation", "NHA_NIC");
    const std::lock_guard lock(mutex_);
    opened_[fd] = {device, generation(device.c_str())};
  }
  /// Its number may come again.
  void forget(int fd) {
    const std::lock_guard lock(mutex_);
    opened_.erase(fd);
  }
  bool gone(int fd) {
    const std::lock_guard lock(mutex_);
    const auto found = opened_.find(fd);
    if (found == opened_.end()) {
      return false;
    }
    const auto& [device, generation] = found->second;
    return !verbs<bool (*)(const char*, unsigned)>("nha_nic_registered", "NHA_NIC")(device.c_str(),
                                                                                    generation);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::pair<std::string, unsigned>> opened_;
};

Attributes& attributes() {
  static auto* all = new Attributes;
  return *all;
}

/// A descriptor that reads so.
int descriptor(const Answer& answer) {
  if (answer.kind == Kind::text) {
    const int fd = memfd_create("sysfs", MFD_CLOEXEC);
    if (write(fd, answer.text.data(), answer.text.size()) < 0) {
      return -1;
    }
    lseek(fd, 0, SEEK_SET);
    attributes().forget(fd);
    if (!answer.device.empty()) {
      attributes().add(fd, answer.device);
    }
    return fd;
  }
  if (answer.kind == Kind::refused) {
    return epoll_create1(EPOLL_CLOEXEC);  // read() gives EINVAL, as sysfs does
  }
  errno = answer.kind == Kind::link ? EISDIR : ENOENT;
  return -1;
}

template <class... Rest>
int open_by(const char* name, const char* path, int flags, Rest... rest) {
  const Answer answer = ask(path);
  return answer.kind == Kind::not_ours
             ? next<int (*)(const char*, int, ...)>(name)(path, flags, rest...)
             : descriptor(answer);
}

using Read = ssize_t (*)(int, void*, size_t, off64_t);
/// Looked up once: whoever unloads a library holds the lock that dlsym() waits for.
const Read next_pread = next<Read>("pread");
const Read next_pread64 = next<Read>("pread64");

ssize_t read_by(Read read, int fd, void* out, size_t bytes, off64_t offset) {
  if (attributes().gone(fd)) {
    errno = ENODEV;
    return -1;
  }
  return read(fd, out, bytes, offset);
}

FILE* stream_by(const char* name, const char* path, const char* mode) {
  const Answer answer = ask(path);
  if (answer.kind == Kind::not_ours) {
    return next<FILE* (*)(const char*, const char*)>(name)(path, mode);
  }
  const int fd = descriptor(answer);
  return fd < 0 ? nullptr : fdopen(fd, "r");
}

mode_t mode_of(int flags, va_list rest) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_by("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_by("open64", path, flags, mode);
}

ssize_t pread(int fd, void* out, size_t bytes, off_t offset) {
  return read_by(next_pread, fd, out, bytes, offset);
}

ssize_t pread64(int fd, void* out, size_t bytes, off64_t offset) {
  return read_by(next_pread64, fd, out, bytes, offset);
}

FILE* fopen(const char* path, const char* mode) { return stream_by("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return stream_by("fopen64", path, mode); }

char* realpath(const char* path, char* out) {
  const Answer answer = ask(path);
  if (answer.kind == Kind::not_ours) {
    return next<char* (*)(const char*, char*)>("realpath")(path, out);
  }
  if (answer.kind != Kind::link) {
    errno = ENOENT;
    return nullptr;
  }
  out = out == nullptr ? static_cast<char*>(malloc(PATH_MAX)) : out;
  return strcpy(out, answer.text.c_str());
}

char* __realpath_chk(const char* path, char* out, size_t) { return realpath(path, out); }

}  // extern "C"
