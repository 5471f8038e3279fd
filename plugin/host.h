// What the plugin takes from the program that loads it and from the machine beneath.
//
// Programs have that of this_host.cpp.  Simulated processes have one each
// (tests/rig/runs/plugin.h), so that the rest of this folder runs on virtual time as it is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/config.h"
#include "runtime/base/result.h"
#include "runtime/base/secret.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha::plugin {

/// Any thread; it outlives the Process.
class Host {
 public:
  /// The settings as they are now.  `warnings`: of those that are not as they should be.
  virtual Result<Config> settings(std::vector<std::string>* warnings) = 0;
  /// All that have an IP address.
  virtual Result<std::vector<fabric::NetInterface>> interfaces() = 0;
  /// Over these interfaces, which it keeps up to date.
  virtual Result<std::unique_ptr<fabric::Provider>> make_provider(
      const Config& config, const std::vector<fabric::NetInterface>& interfaces,
      std::vector<fabric::Provider::Kind> kinds) = 0;
  virtual Result<std::unique_ptr<Engine>> start_engine(const Config& config) = 0;
  virtual Instant now() = 0;
  virtual SecretSource& secrets() = 0;

 protected:
  ~Host() = default;
};

}  // namespace nccl_ha::plugin
