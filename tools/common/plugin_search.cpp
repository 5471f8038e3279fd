#include "tools/common/plugin_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <strings.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tools/common/elf_symbols.h"

namespace nccl_ha::tools {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split_path(const std::string& list) {
  std::vector<std::string> folders;
  size_t from = 0;
  while (from <= list.size()) {
    const size_t end = std::min(list.find_first_of(":;", from), list.size());
    folders.push_back(list.substr(from, end - from));
    from = end + 1;
  }
  return folders;
}

bool same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  return fs::equivalent(one, other, error) && !error;
}

/// One that ldconfig looks into.
bool is_system_folder(const std::string& folder) {
  std::vector<std::string> folders{"/lib", "/usr/lib", "/lib64", "/usr/lib64"};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/etc/ld.so.conf.d", error)) {
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with('/')) {
        folders.push_back(line);
      }
    }
  }
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& one) { return same_file(one, folder); });
}

/// Not set, or a word by which NCCL is told to use its own transports.
bool names_no_plugin(const std::string& name) {
  return name.empty() || name == "none" || name == "socket" || name == "ib";
}

/// Where NCCL would find NAME if the loader took it.
std::vector<std::string> candidates_of(const std::string& name, const GetEnv& get) {
  std::vector<std::string> files;
  for (const std::string& file : nccl_file_names(name)) {
    if (file.find('/') != std::string::npos) {
      files.push_back(file);
      continue;
    }
    for (const std::string& folder : split_path(get("LD_LIBRARY_PATH").value_or(""))) {
      if (!folder.empty()) {
        files.push_back((fs::path(folder) / file).string());
      }
    }
  }
  return files;
}

/// The loader's words for a library that needs a newer one than this system has.
bool needs_newer_library(const std::string& why) {
  return why.find("version `") != std::string::npos && why.find("not found") != std::string::npos;
}

}  // namespace

std::string misfit_of(const std::string& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    return "";
  }
  const auto read = find_elf_symbols(file, ElfTable::dynamic, {});
  return read ? "" : read.error().message();
}

bool PluginSight::other_network() const {
  return !network.empty() && strcasecmp(network.c_str(), own_plugin_name) != 0;
}

std::vector<std::string> plugin_folders(const std::string& folder) {
  std::vector<std::string> folders{folder};
  // The first is this installation's own; the others serve trees that were moved or packaged.
  for (const char* library : {NHA_LIBRARIES_FROM_PROGRAM, "../lib", "../lib64", NHA_MULTIARCH}) {
    const std::string one = (fs::path(folder) / library).lexically_normal().string();
    if (*library != 0 && std::find(folders.begin(), folders.end(), one) == folders.end()) {
      folders.push_back(one);
    }
  }
  return folders;
}

std::optional<FoundPlugin> plugin_beside(const std::string& folder) {
  for (const std::string& one : plugin_folders(folder)) {
    const std::string file = (fs::path(one) / own_plugin_file).string();
    std::error_code error;
    if (fs::is_regular_file(file, error)) {
      return FoundPlugin{file, "beside this program"};
    }
  }
  return std::nullopt;
}

std::optional<FoundPlugin> plugin_beside_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? std::nullopt : plugin_beside(program.parent_path().string());
}

std::vector<std::string> nccl_file_names(const std::string& name) {
  std::vector<std::string> names{name};
  const bool whole = name.starts_with("lib") && name.ends_with(".so");
  if (name.find('/') == std::string::npos && !whole) {
    names.push_back(fmt::format("libnccl-net-{}.so", name));
  }
  return names;
}

Result<FoundPlugin> plugin_of_loader(const std::string& name, const GetEnv& get) {
  std::string why;
  for (const std::string& file : nccl_file_names(name)) {
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why = dlerror();  // the last name is the one that a plugin has
      continue;
    }
    FoundPlugin found{file, "NCCL_NET_PLUGIN names the file"};
    link_map* map = nullptr;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && *map->l_name != 0) {
      found.file = map->l_name;
    }
    dlclose(library);
    if (name.find('/') == std::string::npos) {
      const auto folders = split_path(get("LD_LIBRARY_PATH").value_or(""));
      const std::string folder = fs::path(found.file).parent_path().string();
      const bool listed = std::any_of(folders.begin(), folders.end(), [&](const auto& one) {
        return !one.empty() && same_file(one, folder);
      });
      found.origin = listed ? "by LD_LIBRARY_PATH" : "in the system's library folders (ldconfig)";
    }
    return found;
  }
  return fail(Errc::invalid_argument, why);
}

bool PluginSight::asks_for_none() const { return names_no_plugin(asked); }

std::string PluginSight::text() const {
  const std::string name = asks_for_none() ? own_plugin_name : asked;
  return of_nccl ? fmt::format("with NCCL_NET_PLUGIN={} NCCL loads {}, found {}", name,
                               of_nccl->file, of_nccl->origin)
                 : fmt::format("with NCCL_NET_PLUGIN={} NCCL finds nothing: {}", name, why_not);
}

std::string PluginSight::remedy() const {
  if (agree()) {
    return asks_for_none() ? fmt::format("export NCCL_NET_PLUGIN={}", own_plugin_name) : "";
  }
  if (misfit) {
    return "install the package of nccl-ha that was built for this system and its processor, and "
           "let NCCL_NET_PLUGIN and LD_LIBRARY_PATH lead to it";
  }
  if (!here) {
    return fmt::format("install nccl-ha, or set NCCL_NET_PLUGIN to the full path of {}",
                       own_plugin_file);
  }
  const std::string folder = fs::path(here->file).parent_path().string();
  const std::string otherwise = fmt::format("or set NCCL_NET_PLUGIN={}", here->file);
  if (!of_nccl && system_folder) {
    return fmt::format("run ldconfig as root and set NCCL_NET_PLUGIN={}, {}", own_plugin_name,
                       otherwise);
  }
  return fmt::format(
      "in the job's environment put {} first in LD_LIBRARY_PATH and set "
      "NCCL_NET_PLUGIN={}, {}",
      folder, own_plugin_name, otherwise);
}

PluginSight look_for_plugin(const GetEnv& get) {
  PluginSight sight;
  sight.asked = get("NCCL_NET_PLUGIN").value_or("");
  sight.network = get("NCCL_NET").value_or("");
  sight.here = plugin_beside_program();
  // A list names several, in order of preference.
  const std::string name =
      names_no_plugin(sight.asked) ? own_plugin_name : sight.asked.substr(0, sight.asked.find(','));
  if (auto found = plugin_of_loader(name, get)) {
    sight.of_nccl = *found;
  } else {
    sight.why_not = found.error().what;
    sight.misfit = needs_newer_library(sight.why_not);
    for (const std::string& file : candidates_of(name, get)) {
      if (const std::string why = misfit_of(file); !why.empty()) {
        sight.misfit = true;
        sight.why_not = why;
        break;
      }
    }
  }
  if (sight.here) {
    sight.other_file = sight.of_nccl && !same_file(sight.of_nccl->file, sight.here->file);
    sight.system_folder = is_system_folder(fs::path(sight.here->file).parent_path().string());
  }
  return sight;
}

}  // namespace nccl_ha::tools
