// The process that loaded the library, and its machine.  A file of its own, and an object of its
// own where several are compiled as one (CMakeLists.txt): programs of the rig replace it.
#include <cstddef>
#include <new>
#include <utility>

#include "plugin/host.h"
#include "plugin/process.h"
#include "runtime/base/log.h"

namespace nccl_ha::plugin {
namespace {

class ThisHost final : public Host {
 public:
  Result<Config> settings(std::vector<std::string>* warnings) override {
    auto config = load_config(Environment{}, warnings);
    if (config) {
      set_log_level(config->debug >= 2 ? nccl_ha::LogLevel::debug : nccl_ha::LogLevel::info);
    }
    return config;
  }
  Result<std::vector<fabric::NetInterface>> interfaces() override {
    return fabric::list_interfaces();
  }
  Result<std::unique_ptr<fabric::Provider>> make_provider(
      const Config& config, const std::vector<fabric::NetInterface>& interfaces,
      std::vector<fabric::Provider::Kind> kinds) override {
    auto provider = fabric::Provider::make(
        config, interfaces, static_cast<size_t>(config.progress_threads), {{}, std::move(kinds)});
    if (provider) {
      (*provider)->follow_kernel();
    }
    return provider;
  }
  Result<std::unique_ptr<Engine>> start_engine(const Config& config) override {
    return Engine::start(config);
  }
  Instant now() override { return SteadyClock().now(); }
  SecretSource& secrets() override { return kernel_secrets(); }
};

__attribute__((destructor)) void at_unload() { Process::instance().shut_down(); }

}  // namespace

Process& Process::instance() {
  // Never destroyed: NCCL may call in while static destructors of others run.  What it holds is
  // given back by shut_down().
  static constinit ThisHost host;
  alignas(Process) static std::byte storage[sizeof(Process)];
  static auto* process = new (storage) Process(host);
  return *process;
}

}  // namespace nccl_ha::plugin
