#include "runtime/host.h"

#include <unistd.h>

#include <array>

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

}  // namespace nccl_ha
