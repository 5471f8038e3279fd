// The plugin as simulated processes have it loaded: all of plugin/ but this_host.cpp.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/host.h"
#include "plugin/nccl_abi.h"
#include "plugin/process.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::plugin {
extern "C" const abi::NetV12 ncclNetPlugin_v12;  // plugin/tables.cpp
}

namespace nccl_ha::rig {

/// In one simulated process.  Its World owns it.
class SimPlugin final : public sim::Program, private plugin::Host {
 public:
  using Table = abi::NetV12;  ///< the newest

  /// That of the process, initialised; whoever asks first loads it.
  static SimPlugin& of(sim::World& world, sim::Process& process);
  ~SimPlugin() override;
  void end() override;

  /// A thread of the process calls an entry of NCCL's table.
  template <class... Parameters, class... Arguments>
  abi::NcclResult call(abi::NcclResult (*Table::*entry)(Parameters...), Arguments... arguments) {
    const Caller caller(process_);
    return (plugin::ncclNetPlugin_v12.*entry)(arguments...);
  }
  void* context() const { return context_; }
  /// finalize(), which ends the engine.
  void finalize();
  /// Once the process has ended nothing looks at `comm` any more, and `close` frees it.
  using Close = abi::NcclResult (*Table::*)(void* comm);
  void close_at_end(Close close, void* comm) { left_open_.emplace_back(close, comm); }
  /// For what stands for parts of it that are not simulated, as the mesh of its process.
  plugin::Process& process() { return process_; }
  /// The plugin ended and had something open, or was thought to have.
  bool ended_in_use() const { return ended_in_use_; }

 private:
  /// Process::instance() is that of who calls.
  struct Caller {
    explicit Caller(plugin::Process& process);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;
  };

  SimPlugin(sim::World& world, sim::Process& own) : world_(world), own_(own), process_(*this) {}
  Result<Config> settings(std::vector<std::string>* warnings) override;
  Result<std::vector<fabric::NetInterface>> interfaces() override { return own_.interfaces; }
  Result<std::unique_ptr<fabric::Provider>> make_provider(
      const Config& config, const std::vector<fabric::NetInterface>& interfaces,
      std::vector<fabric::Provider::Kind> kinds) override;
  Result<std::unique_ptr<Engine>> start_engine(const Config& config) override;
  Instant now() override { return world_.now(); }
  SecretSource& secrets() override { return *own_.secrets; }

  sim::World& world_;
  sim::Process& own_;
  plugin::Process process_;
  void* context_ = nullptr;
  std::vector<std::pair<Close, void*>> left_open_;
  bool ended_in_use_ = false;
};

}  // namespace nccl_ha::rig
