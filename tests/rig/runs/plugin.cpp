#include "tests/rig/runs/plugin.h"

#include "runtime/base/check.h"

namespace nccl_ha {
namespace {

plugin::Process* whose_thread_calls = nullptr;

}  // namespace

plugin::Process& plugin::Process::instance() {
  NHA_ASSERT(whose_thread_calls != nullptr, "only callers of a process call its plugin");
  return *whose_thread_calls;
}

namespace rig {

SimPlugin::Caller::Caller(plugin::Process& process) {
  NHA_ASSERT(whose_thread_calls == nullptr, "the plugin calls no entry of NCCL's");
  whose_thread_calls = &process;
}

SimPlugin::Caller::~Caller() { whose_thread_calls = nullptr; }

SimPlugin& SimPlugin::of(sim::World& world, sim::Process& process) {
  if (!process.program) {
    std::unique_ptr<SimPlugin> made(new SimPlugin(world, process));
    const auto loaded =
        made->call(&Table::init, &made->context_, world.random().seed(), nullptr, nullptr, nullptr);
    NHA_ASSERT(loaded == abi::NcclResult::success, "its devices are there");
    process.program = std::move(made);
  }
  return static_cast<SimPlugin&>(*process.program);
}

SimPlugin::~SimPlugin() {
  for (const auto& [close, comm] : left_open_) {
    static_cast<void>(call(close, comm));
  }
}

void SimPlugin::end() {
  process_.shut_down();
  // What it still uses it keeps.
  ended_in_use_ = ended_in_use_ || process_.device_count() != 0;
  own_.provider = ended_in_use_ ? own_.provider : nullptr;
}

void SimPlugin::finalize() {
  static_cast<void>(call(&Table::finalize, context_));
  own_.engine = nullptr;
}

/// The mesh that processes find by themselves is one of real sockets.
Result<Config> SimPlugin::settings(std::vector<std::string>*) {
  Config config = own_.config;
  config.mesh_enable_relay = false;
  return config;
}

Result<std::unique_ptr<fabric::Provider>> SimPlugin::make_provider(
    const Config&, const std::vector<fabric::NetInterface>& interfaces,
    std::vector<fabric::Provider::Kind>) {
  NHA_ASSERT(interfaces.size() == own_.interfaces.size(), "all were made to be used");
  return std::move(own_.own_provider);
}

Result<std::unique_ptr<Engine>> SimPlugin::start_engine(const Config&) {
  if (!own_.own_engine) {
    return fail(Errc::system, "a simulated process begins once");
  }
  return std::move(own_.own_engine);
}

}  // namespace rig
}  // namespace nccl_ha
