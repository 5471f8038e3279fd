#include "plugin/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "plugin/edge.h"
#include "plugin/profiler.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/version.h"

namespace nccl_ha::plugin {
namespace {

// NCCL's subsystem bits: initialisation and network.
constexpr unsigned long log_subsystems = 0x1 | 0x10;
/// At its end a process waits at most so long for paths of others that lead through it.
constexpr Duration leave_limit = std::chrono::milliseconds(200);

std::atomic<abi::Logger> nccl_logger{nullptr};

void log_to_nccl(void* context, LogLevel level, const char* file, int line, const char* text) {
  (void)context;
  const abi::Logger logger = nccl_logger.load(std::memory_order_acquire);
  if (logger == nullptr) {
    return;
  }
  const auto severity = level <= LogLevel::warn   ? abi::LogLevel::warn
                        : level == LogLevel::info ? abi::LogLevel::info
                                                  : abi::LogLevel::trace;
  logger(severity, log_subsystems, file, line, "NET/HA : %s", text);
}

/// Those of `all` that are up and not among `chosen`.
std::vector<fabric::NetInterface> management(const std::vector<fabric::NetInterface>& all,
                                             std::string_view family,
                                             const std::vector<fabric::NetInterface>& chosen) {
  std::vector<fabric::NetInterface> others;
  auto usable = fabric::select_interfaces(all, "", family);
  for (size_t i = 0; usable && i < usable->size(); ++i) {
    const fabric::NetInterface& one = (*usable)[i];
    const bool known = std::any_of(chosen.begin(), chosen.end(),
                                   [&](const auto& other) { return other.ifindex == one.ifindex; });
    if (!known && !one.loopback && one.up) {
      others.push_back(one);
    }
  }
  return others;
}

/// In a mesh data goes over cables, and NCCL_SOCKET_IFNAME is for NCCL's own sockets.
std::string data_interfaces(const Config& config, const relay::ProcessMesh& mesh) {
  const auto origin = config.origins.find("ifname");
  const bool named = origin != config.origins.end() && origin->second.variable == "HA_NCCL_IFNAME";
  if (!mesh.takes_part() || mesh.automatic() || named) {
    return config.ifname;
  }
  std::string cables = "=";
  for (const fabric::NetInterface& one : mesh.interfaces()) {
    cables += one.name + ",";
  }
  return cables;
}

}  // namespace

Result<uint16_t> ListenComm::open(Engine& of, fabric::Provider& provider,
                                  const fabric::RailDevices& devices, const CablePorts& ports) {
  const size_t index = of.assign_worker(provider.devices()[devices.first()].numa_node, 1.0);
  engine = &of;
  worker = &of.worker(index);
  door = Door::of(worker->context());
  auto port = door->add({provider, of, devices, ports, channel});
  if (!port) {
    of.add_load(index, -1.0);
  }
  return port;
}

Result<void> Process::initialize(abi::Logger logger, uint64_t comm_id) {
  own_state();  // before the lock, and once more: somebody else may just have settled it
  std::lock_guard lock(mutex_);
  own_state();
  if (job_ == nullptr) {
    job_ = std::make_shared<relay::JobKeys>();
  }
  job_->add(comm_id);
  auto ready = initialize_locked(logger);
  contexts_ += ready ? 1 : 0;
  settle_owner_locked();
  return ready;
}

/// Settings and devices alone are a fork's as well as this process's.
void Process::settle_owner_locked() {
  if (engine_ == nullptr && !OwnFds().any()) {
    disown_state();
  } else {
    own_state();
  }
}

Result<void> Process::initialize_locked(abi::Logger logger) {
  if (logger != nullptr) {
    nccl_logger.store(logger, std::memory_order_release);
    set_log_sink(log_to_nccl, nullptr);
  }
  auto begun = initialized_ ? Result<void>() : begin_locked();
  if (!begun && provider_ != nullptr) {
    NHA_LOG_WARN("settings and devices stay as they were: {}", begun.error().message());
    begun = {};
  }
  initialized_ = static_cast<bool>(begun);
  if (!begun) {
    NHA_LOG_ERROR("{}", begun.error().message());
  }
  return begun;
}

Result<void> Process::begin_locked() {
  std::vector<std::string> warnings;
  auto config = host_.settings(&warnings);
  for (const std::string& warning : warnings) {
    NHA_LOG_WARN("{}", warning);
  }
  // A wrong setting or a missing interface may be put right before the next init, so failures are
  // not remembered.
  if (!config) {
    return config.error();
  }
  auto all = host_.interfaces();
  if (!all) {
    return all.error();
  }
  auto mesh = relay::ProcessMesh::make(*config, *all, job_);
  if (!mesh) {
    return mesh.error();
  }
  fabric::SelectionNotes notes;
  Config of_data = *config;
  of_data.ifname = data_interfaces(*config, **mesh);
  auto interfaces = fabric::select_interfaces(*all, of_data.ifname, config->socket_family, &notes);
  for (const std::string& warning : notes.warnings) {
    NHA_LOG_WARN("{}", warning);
  }
  if (!interfaces) {
    return interfaces.error();
  }
  auto provider = host_.make_provider(of_data, *interfaces, (*mesh)->kinds());
  if (!provider) {
    return provider.error();
  }
  const auto oob_interface = choose_oob_interface(*config, **provider);
  if (!oob_interface) {
    return oob_interface.error();
  }
  // Last: from here on numbers of devices and interfaces are those of the new provider.
  if (auto listed = devices_.begin(*config, (*provider)->devices()); !listed) {
    return listed.error();
  }
  config_ = *config;
  provider_ = std::move(*provider);
  oob_interface_ = *oob_interface;
  mesh_ = std::move(*mesh);  // what the provider before had of the old one is gone
  management_.clear();
  if (mesh_->takes_part()) {
    management_ = management(*all, config_.socket_family, *provider_->interfaces());
  }
  std::string names;
  for (size_t i = 0; i < devices_.count(); ++i) {
    names += fmt::format(" {}", devices_.find(static_cast<int>(i))->name);
  }
  NHA_LOG_INFO("nccl-ha {} ({}): using {} on{}; {}", version_number(), version_commit(),
               provider_->text(provider_->devices().front().kind), names,
               config_.use_progress_thread ? "progress threads" : "inline progress");
  std::string set;
  for (const SettingView& setting : describe(config_)) {
    if (setting.origin != "default") {
      set += fmt::format(" {}={}", setting.name, setting.value);
    }
  }
  NHA_LOG_INFO("nccl-ha: settings{}", set.empty() ? " at their defaults" : set);
  return {};
}

Result<std::optional<size_t>> Process::choose_oob_interface(const Config& config,
                                                            const fabric::Provider& provider) {
  if (config.mpib_oob_if.empty()) {
    return std::optional<size_t>();
  }
  std::string known;
  const auto interfaces = provider.interfaces();
  for (size_t i = 0; i < interfaces->size(); ++i) {
    const std::string& name = (*interfaces)[i].name;
    known += (known.empty() ? "" : ", ") + name;
    if (name == config.mpib_oob_if) {
      return std::optional(i);
    }
  }
  return fail(Errc::invalid_argument,
              fmt::format("HA_NCCL_OOB_IF={}: no such interface is in use; there are {} "
                          "(HA_NCCL_IFNAME may leave it out)",
                          config.mpib_oob_if, known));
}

std::vector<fabric::NetInterface> Process::control_interfaces() const {
  std::vector<fabric::NetInterface> all = *provider_->interfaces();
  all.insert(all.end(), management_.begin(), management_.end());
  return all;
}

void Process::remove_context() {
  std::lock_guard lock(mutex_);
  if (contexts_ == 0 || --contexts_ != 0) {
    return;
  }
  stop_locked();
  forget_profiler();
  initialized_ = false;  // the next init reads settings again, and opens the devices anew
  settle_owner_locked();
}

void Process::shut_down() {
  if (in_fork()) {
    return;
  }
  std::lock_guard lock(mutex_);
  nccl_logger.store(nullptr, std::memory_order_release);
  forget_profiler();
  static_cast<void>(take_abandoned_locked());  // end here, while there is an engine
  const bool in_use = users_ > 0;
  stop_locked();
  if (in_use) {
    return;  // the process ends with connections open; their threads may still call in
  }
  initialized_ = false;
  // Moved out, because assigning an empty value keeps the room of the old one.
  static_cast<void>(std::exchange(config_, {}));
  provider_.reset();
  mesh_.reset();
  job_.reset();
  management_ = decltype(management_)();
  devices_.end();
  forget_interned();
}

void Process::stop_locked() {
  pending_ = decltype(pending_)();  // clear() would keep its room
  waiting_ = decltype(waiting_)();
  generation_.store(0, std::memory_order_release);
  if (engine_) {
    mesh_->leave(*engine_,
                 std::min<Duration>(leave_limit, std::chrono::milliseconds(config_.mesh_drain_ms)));
  }
  engine_.reset();  // joins its threads
  if (provider_) {
    provider_->rest();  // so does this
  }
  users_ = 0;
}

Result<Engine*> Process::open() {
  own_state();  // before the lock, and once more: somebody else may just have settled it
  std::lock_guard lock(mutex_);
  own_state();
  if (!initialized_) {
    return fail(Errc::invalid_usage, "the plugin was not initialised");
  }
  if (!engine_) {
    auto engine = host_.start_engine(config_);
    if (!engine) {
      NHA_LOG_ERROR("{}", engine.error().message());
      return engine.error();
    }
    if (auto begun = mesh_->begin(**engine, *provider_, host_.now()); !begun) {
      NHA_LOG_ERROR("{}", begun.error().message());
      return begun.error();
    }
    engine_ = std::move(*engine);
    generation_.store(++last_generation_, std::memory_order_release);
  }
  ++users_;
  return engine_.get();
}

Result<Engine*> Process::engine() {
  std::lock_guard lock(mutex_);
  if (!engine_) {
    return fail(Errc::invalid_usage, "the plugin was finalised while something was under way");
  }
  return engine_.get();
}

void Process::close() {
  std::lock_guard lock(mutex_);
  if (users_ > 0) {
    --users_;
  }
}

uint64_t Process::next_id() {
  if (next_pending_ == 0) {
    next_pending_ = host_.secrets().draw().told();
  }
  do {
    ++next_pending_;
  } while (next_pending_ == 0);
  return next_pending_;
}

uint64_t Process::add_pending(std::shared_ptr<SendEndpoint> endpoint) {
  std::vector<std::shared_ptr<SendEndpoint>> abandoned;
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    abandoned = take_abandoned_locked();
    id = next_id();
    pending_.emplace(id, Pending{std::move(endpoint), host_.now()});
  }
  for (const auto& one : abandoned) {
    one->driver.close();
  }
  return id;
}

/// A program that gives up asks no more, and has nothing that it could close.
std::vector<std::shared_ptr<SendEndpoint>> Process::take_abandoned_locked() {
  const Instant before = host_.now() - std::chrono::milliseconds(config_.connect_timeout_ms);
  std::vector<std::shared_ptr<SendEndpoint>> abandoned;
  std::erase_if(pending_, [&](const auto& one) {
    const Pending& pending = one.second;
    if (pending.endpoint->channel.phase() != Phase::failed || pending.asked > before) {
      return false;
    }
    abandoned.push_back(pending.endpoint);
    return true;
  });
  users_ -= std::min(users_, abandoned.size());
  return abandoned;
}

std::shared_ptr<SendEndpoint> Process::find_pending(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(id);
  if (found == pending_.end()) {
    return nullptr;
  }
  found->second.asked = host_.now();
  return found->second.endpoint;
}

void Process::remove_pending(uint64_t id) {
  std::lock_guard lock(mutex_);
  pending_.erase(id);
}

uint64_t Process::add_waiting(Instant until) {
  std::lock_guard lock(mutex_);
  const uint64_t id = next_id();
  waiting_.emplace(id, until);
  return id;
}

std::optional<Instant> Process::find_waiting(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = waiting_.find(id);
  return found == waiting_.end() ? std::nullopt : std::optional(found->second);
}

void Process::remove_waiting(uint64_t id) {
  std::lock_guard lock(mutex_);
  waiting_.erase(id);
}

}  // namespace nccl_ha::plugin
