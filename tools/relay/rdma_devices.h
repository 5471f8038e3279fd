// The RDMA devices of this host, and when they are other ones than a relay node began with.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace nccl_ha::tools {

/// A node uses the devices whose ports were active when it began.  One thread.
class RdmaDevices {
 public:
  /// `folder` is /sys/class/infiniband.
  explicit RdmaDevices(std::string folder) : folder_(std::move(folder)), begun_(list()) {}

  /// A device has gone, or one is active that was not.  Two calls in a row have to see the same: a
  /// port that has just come up has no address yet.
  bool changed();

 private:
  struct Device {
    std::string name;
    ino_t number = 0;  ///< one that has gone and come back has another
    bool active = false;
    bool operator==(const Device&) const = default;
  };
  std::vector<Device> list() const;

  const std::string folder_;
  const std::vector<Device> begun_;
  std::vector<Device> last_ = begun_;
};

}  // namespace nccl_ha::tools
