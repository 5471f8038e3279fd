#include "relay/node_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <tuple>

#include "runtime/base/host.h"

namespace nccl_ha::relay {
namespace {

/// FNV-1a, 64 bit (Fowler, Noll, Vo), and the last step of splitmix64, as neighbouring addresses
/// would else give neighbouring numbers.
class NodeHash {
 public:
  void add(const void* from, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(from);
    for (size_t i = 0; i < bytes; ++i) {
      value_ = (value_ ^ at[i]) * 0x100000001B3;
    }
  }
  NodeId finish() const {
    uint64_t mixed = value_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    mixed ^= mixed >> 31;
    return NodeId{mixed == 0 ? 1 : mixed};
  }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

}  // namespace

std::string text(NodeId id) { return fmt::format("{:016x}", number(id)); }

NodeId make_node_id(std::vector<IpAddress> addresses, std::string_view machine_id) {
  std::sort(addresses.begin(), addresses.end(), [](const IpAddress& a, const IpAddress& b) {
    return std::tie(a.family, a.bytes) < std::tie(b.family, b.bytes);
  });
  NodeHash hash;
  for (const IpAddress& address : addresses) {
    hash.add(&address.family, sizeof address.family);
    hash.add(address.bytes.data(), address.family == 4 ? 4 : 16);
  }
  hash.add(machine_id.data(), machine_id.size());
  return hash.finish();
}

NodeId node_id_of_name(std::string_view name) {
  NodeHash hash;
  hash.add(name.data(), name.size());
  return hash.finish();
}

std::string machine_id() {
  std::ifstream file("/etc/machine-id");
  std::string line;
  std::getline(file, line);
  return line.empty() ? host_name() : line;
}

}  // namespace nccl_ha::relay
