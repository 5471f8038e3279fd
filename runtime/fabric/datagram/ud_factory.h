// The datagram engine over UD queue pairs.
#pragma once

#include <memory>
#include <vector>

#include "runtime/fabric/datagram/port_opener.h"
#include "runtime/fabric/rdma_factory.h"

namespace nccl_ha::fabric {

inline constexpr FabricKind ud_kind{3};

class UdFactory final : public RdmaFactory {
 public:
  UdFactory(const Config& config, FabricHost& host, std::shared_ptr<RdmaPorts> ports,
            PortOpener opener);

  FabricKind kind() const override { return ud_kind; }
  const char* setting() const override { return "ud"; }
  const char* text() const override { return "RDMA datagrams"; }
  /// The engine's bytes are moved by the processor.
  PathTraits traits(const NetDevice& device) const override;
  size_t paths_wanted() const override { return paths_wanted_; }
  Result<OwnedPath> create_path(Context& context, const Attachment& at, const sockaddr* local,
                                const PathOptions& options, PathOwner* owner) override;

 private:
  PortOpener opener_;
  size_t paths_wanted_;
  struct OpenEnd {
    uint32_t incarnation = 0;
    std::weak_ptr<DatagramPort> port;
  };
  std::vector<std::vector<OpenEnd>> open_;  // per worker and RDMA port
};

}  // namespace nccl_ha::fabric
