#include "runtime/host.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
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

uint64_t process_start_ticks() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The second field is the program's name in parentheses, which may hold anything; the time is
  // the 22nd (proc(5)).
  const size_t name_end = text.rfind(')');
  std::istringstream rest(name_end == std::string::npos ? std::string()
                                                        : text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22 && rest >> field; ++number) {
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace nccl_ha
