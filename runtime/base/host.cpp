#include "runtime/base/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace nccl_ha {

const std::string& host_name() {
  static const std::string name = [] {
    std::array<char, 256> buffer{};
    if (gethostname(buffer.data(), buffer.size() - 1) != 0 || buffer[0] == '\0') {
      return std::string("host");
    }
    const std::string full(buffer.data());
    return full.substr(0, full.find('.'));
  }();
  return name;
}

namespace {

/// Of /proc/WHO/stat; 0 when there is none.
uint64_t start_ticks_of(const std::string& who, bool also_zombies) {
  std::ifstream file("/proc/" + who + "/stat");
  // A process that ends after its file was opened fails the read: getline() tells by the stream's
  // state, an iterator over its buffer would throw.
  std::string text;
  std::getline(file, text, '\0');
  // The second field is the program's name in parentheses, which may hold anything; the third is
  // the state, the time is the 22nd (proc(5)).
  const size_t name_end = text.rfind(')');
  std::istringstream rest(name_end == std::string::npos ? std::string()
                                                        : text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22 && rest >> field; ++number) {
    if (number == 3 && !also_zombies && (field == "Z" || field == "X")) {
      return 0;
    }
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

uint64_t process_start_ticks() { return start_ticks_of("self", true); }

uint64_t process_start_ticks(uint32_t pid) { return start_ticks_of(std::to_string(pid), false); }

std::optional<uid_t> process_owner(uint32_t pid) {
  // Not the owner of the folder below /proc: that is root for who has capabilities by a file.
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("Uid:")) {
      uid_t real = 0;
      uid_t effective = 0;
      std::istringstream numbers(line.substr(4));
      return numbers >> real >> effective ? std::optional(effective) : std::nullopt;
    }
  }
  return std::nullopt;
}

uint64_t pid_namespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

uint64_t clock_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  if (text.empty()) {
    return 0;
  }
  struct stat info {};
  const uint64_t where = stat("/proc/self/ns/time", &info) == 0 ? info.st_ino : 0;
  uint64_t hash = 0xCBF29CE484222325U ^ where;  // FNV-1a (RFC 9923)
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace nccl_ha
