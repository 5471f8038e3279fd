#include "tools/common/net_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <utility>

#include "tools/common/elf_symbols.h"
#include "tools/common/net_library_tables.h"
#include "tools/common/plugin_search.h"

namespace nccl_ha::tools {
namespace {

struct LogState {
  std::mutex mutex;
  std::string prefix = "plugin: ";
  std::string last_warning;
  std::vector<std::string> warnings;  ///< not taken yet
  PluginLog level = PluginLog::warnings;
};
constexpr size_t warnings_max = 100;

KnownNets known_nets = nullptr;

/// Lives until the process ends: a plugin's thread may log at any time.
LogState& log_state() {
  static auto* state = new LogState;
  return *state;
}

void log_line(abi::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  LogState& state = log_state();
  const std::lock_guard lock(state.mutex);
  if (level == abi::LogLevel::warn) {
    state.last_warning = text;
    if (state.warnings.size() < warnings_max) {
      state.warnings.emplace_back(text);
    }
  }
  const bool wanted = state.level == PluginLog::everything ||
                      (state.level == PluginLog::warnings && level == abi::LogLevel::warn);
  if (!wanted) {
    return;
  }
  std::fprintf(stderr, "%s%s\n", state.prefix.c_str(), text);
}

bool file_exists(const std::string& file) {
  struct stat status {};
  return stat(file.c_str(), &status) == 0;
}

std::string symbol_name(int version) { return fmt::format("ncclNetPlugin_v{}", version); }

std::vector<std::string> all_symbol_names() {
  std::vector<std::string> names;
  for (int version = abi_newest; version >= abi_oldest; --version) {
    names.push_back(symbol_name(version));
  }
  return names;
}

struct LoadedFile {
  void* library = nullptr;
  std::string file;
};

Result<LoadedFile> load_path(const std::string& file) {
  // The loader's own complaints about a wrong file are cryptic, so look at it first.
  if (auto readable = find_elf_symbols(file, ElfTable::dynamic, {}); !readable) {
    return readable.error();
  }
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(Errc::invalid_argument, fmt::format("cannot load {}: {}", file, dlerror()));
  }
  return LoadedFile{library, file};
}

/// Our own plugin from beside this program; what else NCCL_NET_PLUGIN may name by NCCL's rules.
Result<LoadedFile> load_by_name(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return load_path(name);
  }
  if (name == own_plugin_name || name == own_plugin_file) {
    if (const auto found = plugin_beside_program()) {
      return load_path(found->file);
    }
  }
  std::string tried;
  for (const std::string& file : nccl_file_names(name)) {
    if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return LoadedFile{library, file};
    }
    tried += (tried.empty() ? "" : " and ") + file;
  }
  return fail(Errc::invalid_argument,
              file_exists(name)
                  ? fmt::format("'{0}' is not on the loader's path; for the file in this folder "
                                "write ./{0}",
                                name)
                  : fmt::format("no plugin '{}': tried {} along the loader's path; give a path "
                                "with a '/' or set LD_LIBRARY_PATH",
                                name, tried));
}

std::string versions_in(void* library) {
  std::string text;
  for (int version = abi_newest; version >= abi_oldest; --version) {
    if (dlsym(library, symbol_name(version).c_str()) != nullptr) {
      text += fmt::format("{}v{}", text.empty() ? "" : ", ", version);
    }
  }
  return text;
}

struct FoundTable {
  const void* table = nullptr;
  int version = 0;
};

Result<FoundTable> find_named(const LoadedFile& loaded, const std::string& symbol, int abi) {
  const void* table = dlsym(loaded.library, symbol.c_str());
  if (table == nullptr) {
    return fail(Errc::invalid_argument, fmt::format("{} has no symbol {}", loaded.file, symbol));
  }
  int version = abi;
  for (int v = abi_oldest; v <= abi_newest && version == 0; ++v) {
    version = symbol == symbol_name(v) ? v : 0;
  }
  if (version == 0) {
    return fail(Errc::invalid_argument,
                fmt::format("the name {} tells no ABI version: add --abi N", symbol));
  }
  return FoundTable{table, version};
}

Result<FoundTable> find_versioned(const LoadedFile& loaded, int abi) {
  for (int version = abi_newest; version >= abi_oldest; --version) {
    if (abi != 0 && abi != version) {
      continue;
    }
    if (const void* table = dlsym(loaded.library, symbol_name(version).c_str()); table != nullptr) {
      return FoundTable{table, version};
    }
  }
  const std::string present = versions_in(loaded.library);
  if (present.empty()) {
    std::string names;
    for (const std::string& name : all_symbol_names()) {
      names += (names.empty() ? "" : ", ") + name;
    }
    return fail(
        Errc::invalid_argument,
        fmt::format("{} is no NCCL network plugin: none of {} is in it", loaded.file, names));
  }
  return fail(Errc::invalid_argument,
              fmt::format("{} has no ABI v{}; it offers {}", loaded.file, abi, present));
}

}  // namespace

const char* result_name(abi::NcclResult result) {
  static constexpr const char* names[] = {
      "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
      "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};
  const auto index = static_cast<size_t>(result);
  return index < std::size(names) ? names[index] : "an unknown code";
}

void set_plugin_log(const std::string& prefix, PluginLog level) {
  LogState& state = log_state();
  const std::lock_guard lock(state.mutex);
  state.prefix = prefix;
  state.level = level;
}

std::string last_plugin_warning() {
  LogState& state = log_state();
  const std::lock_guard lock(state.mutex);
  return state.last_warning;
}

std::vector<std::string> take_plugin_warnings() {
  LogState& state = log_state();
  const std::lock_guard lock(state.mutex);
  return std::exchange(state.warnings, {});
}

abi::Logger plugin_logger() { return log_line; }

Result<NetApi> NetApi::make(const void* table, int version) {
  const Calls calls = calls_of(table, version);
  if (calls.missing != nullptr) {
    return fail(Errc::invalid_argument,
                fmt::format("the plugin's v{} table has no {}", version, calls.missing));
  }
  return NetApi(table, version, calls);
}

const char* NetApi::name() const { return calls_.name(table_); }

Error NetApi::call_failed(const char* call, abi::NcclResult result) const {
  const std::string warning = last_plugin_warning();
  return fail(Errc::remote, fmt::format("{} of {} gave {}{}{}", call, name(), result_name(result),
                                        warning.empty() ? "" : ": ", warning));
}

Result<void> NetApi::init(uint64_t comm_id) {
  const auto result = calls_.init(table_, &context_, comm_id);
  return result == abi::NcclResult::success ? Result<void>() : call_failed("init", result);
}

Result<int> NetApi::devices() {
  int count = -1;
  if (const auto result = calls_.devices(table_, &count); result != abi::NcclResult::success) {
    return call_failed("devices", result);
  }
  return count;
}

Result<NetDevice> NetApi::properties(int device) {
  NetDevice out;
  if (const auto result = calls_.properties(table_, device, &out);
      result != abi::NcclResult::success) {
    return call_failed("getProperties", result);
  }
  return out;
}

Result<int> NetApi::merge(std::vector<int> members) {
  int device = -1;
  const auto result =
      calls_.merge(table_, &device, members.data(), static_cast<int>(members.size()));
  return result == abi::NcclResult::success ? Result<int>(device)
                                            : call_failed("makeVDevice", result);
}

Result<void*> NetApi::listen(int device, NetHandle& handle) {
  void* comm = nullptr;
  if (const auto result = calls_.listen(table_, context_, device, handle.data(), &comm);
      result != abi::NcclResult::success) {
    return call_failed("listen", result);
  }
  if (comm == nullptr) {
    return fail(Errc::internal, fmt::format("listen of {} succeeded without a result", name()));
  }
  return comm;
}

Result<void*> NetApi::connect(int device, NetHandle& handle) {
  void* comm = nullptr;
  if (const auto result = calls_.connect(table_, context_, device, handle.data(), &comm);
      result != abi::NcclResult::success) {
    return call_failed("connect", result);
  }
  return comm;
}

Result<void*> NetApi::accept(void* listen_comm) {
  void* comm = nullptr;
  if (const auto result = calls_.accept(table_, listen_comm, &comm);
      result != abi::NcclResult::success) {
    return call_failed("accept", result);
  }
  return comm;
}

Result<void*> NetApi::register_memory(void* comm, void* data, size_t size) {
  void* mhandle = nullptr;
  if (const auto result = calls_.register_memory(table_, comm, data, size, &mhandle);
      result != abi::NcclResult::success) {
    return call_failed("regMr", result);
  }
  return mhandle;
}

Result<void> NetApi::deregister_memory(void* comm, void* mhandle) {
  const auto result = calls_.deregister_memory(table_, comm, mhandle);
  return result == abi::NcclResult::success ? Result<void>() : call_failed("deregMr", result);
}

Result<void> NetApi::close_send(void* comm) {
  const auto result = calls_.close_send(table_, comm);
  return result == abi::NcclResult::success ? Result<void>() : call_failed("closeSend", result);
}

Result<void> NetApi::close_recv(void* comm) {
  const auto result = calls_.close_recv(table_, comm);
  return result == abi::NcclResult::success ? Result<void>() : call_failed("closeRecv", result);
}

Result<void> NetApi::close_listen(void* comm) {
  const auto result = calls_.close_listen(table_, comm);
  return result == abi::NcclResult::success ? Result<void>() : call_failed("closeListen", result);
}

Result<void> NetApi::finalize() {
  const auto result = calls_.finalize(table_, std::exchange(context_, nullptr));
  return result == abi::NcclResult::success ? Result<void>() : call_failed("finalize", result);
}

PluginName split_plugin_name(const std::string& name) {
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == name.size() || file_exists(name) ||
      name.find('/', colon) != std::string::npos) {
    return {name, ""};
  }
  return {name.substr(0, colon), name.substr(colon + 1)};
}

NetLibrary::~NetLibrary() {
  if (library_ != nullptr) {
    dlclose(library_);
  }
}

void know_nets(KnownNets nets) { known_nets = nets; }

Result<std::unique_ptr<NetLibrary>> NetLibrary::open(const std::string& name, int abi) {
  if (abi != 0 && (abi < abi_oldest || abi > abi_newest)) {
    return fail(Errc::invalid_argument, fmt::format("--abi {} is not a version from {} to {}", abi,
                                                    abi_oldest, abi_newest));
  }
  LoadedFile loaded;
  FoundTable found;
  if (const auto known = known_nets == nullptr ? std::nullopt : known_nets(name)) {
    if (!*known) {
      return known->error();
    }
    const KnownNet& net = **known;
    if (abi != 0 && abi != net.abi) {
      return fail(Errc::invalid_argument,
                  fmt::format("'{}' of {} has ABI v{} only", name, net.file, net.abi));
    }
    loaded.file = net.file;
    found = {net.table, net.abi};
  } else {
    const PluginName parts = split_plugin_name(name);
    auto file = load_by_name(parts.file);
    if (!file) {
      return file.error();
    }
    loaded = *file;
    auto table =
        parts.symbol.empty() ? find_versioned(loaded, abi) : find_named(loaded, parts.symbol, abi);
    if (!table) {
      dlclose(loaded.library);
      return table.error();
    }
    found = *table;
  }
  auto api = NetApi::make(found.table, found.version);
  if (!api) {
    return fail(api.error().code, fmt::format("{}: {}", loaded.file, api.error().what));
  }
  return std::unique_ptr<NetLibrary>(new NetLibrary(loaded.library, std::move(loaded.file), *api));
}

}  // namespace nccl_ha::tools
