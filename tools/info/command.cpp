// nccl-ha info: devices, addresses, settings; what the plugin would do on this host and why.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/base/config.h"
#include "runtime/base/cpu.h"
#include "runtime/base/log.h"
#include "runtime/base/version.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/port_halves.h"
#include "runtime/fabric/provider.h"
#include "runtime/fabric/verbs/port_list.h"
#include "tools/commands.h"
#include "tools/common/host_view.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/output.h"
#include "tools/common/plugin_search.h"
#include "tools/common/refusal.h"
#include "tools/common/terminal.h"
#include "tools/common/within.h"
#include "tools/info/counters.h"
#include "tools/info/routes.h"

namespace nccl_ha::tools {
namespace {

using fabric::NetInterface;
using nlohmann::json;

constexpr Refusal refuse_info{"nccl-ha info", 2};

struct InfoOptions {
  bool env_only = false;
  bool as_json = false;
  bool markdown = false;
  bool man = false;
  uint32_t pid = 0;  ///< 0: this host instead of a process
  bool routes = false;
  RoutesOptions mesh;
};

std::string addresses_text(const NetInterface& interface) {
  std::string out;
  for (const IpAddress& address : interface.addresses) {
    out += fmt::format("{}{}/{}", out.empty() ? "" : " ", address.text(), address.prefix_len);
  }
  return out;
}

json interface_json(const NetInterface& interface) {
  json addresses = json::array();
  for (const IpAddress& address : interface.addresses) {
    addresses.push_back(fmt::format("{}/{}", address.text(), address.prefix_len));
  }
  return {{"name", interface.name},
          {"addresses", addresses},
          {"mtu", interface.mtu},
          {"speed_mbps", interface.speed_mbps},
          {"numa_node", interface.numa_node},
          {"pci_path", interface.pci_path},
          {"guid", fmt::format("{:016x}", interface.guid)},
          {"offered", interface.offered},
          {"why_not", interface.why_not}};
}

std::string gid_summary(const ChosenPort& port) {
  if (!port.gid) {
    return fmt::format("lid {}", port.info.lid);
  }
  if (port.info.link == fabric::verbs::LinkLayer::infiniband) {
    return fmt::format("lid {}, gid {} {}", port.info.lid, port.gid->index,
                       fabric::verbs::gid_text(port.gid->bytes));
  }
  return fmt::format("gid {} {}, RoCE v{}", port.gid->index,
                     fabric::verbs::gid_address(port.gid->bytes).text(), port.gid->roce_v2 ? 2 : 1);
}

json device_json(const fabric::NetDevice& device, const RdmaView& rdma,
                 const std::vector<NetInterface>& interfaces) {
  if (device.kind == fabric::datagram_kind) {
    return interface_json(interfaces[device.index]);
  }
  const ChosenPort& port = rdma.ports[device.index];
  json out{{"name", device.name},
           {"link", to_text(port.info.link)},
           {"netdev", port.info.netdev},
           {"lid", port.info.lid},
           {"mtu", port.info.mtu},
           {"speed_mbps", device.speed_mbps},
           {"numa_node", device.numa_node},
           {"pci_path", device.pci_path},
           {"guid", fmt::format("{:016x}", device.guid)},
           {"peer_memory", device.peer_memory},
           {"dmabuf", device.dmabuf}};
  if (port.gid) {
    out["gid_index"] = port.gid->index;
    out["gid"] = fabric::verbs::gid_text(port.gid->bytes);
  }
  return out;
}

/// All settings, with the file where one of NCCL's set a variable.
std::vector<SettingView> describe(const Config& config, const NcclConf& conf) {
  std::vector<SettingView> views = nccl_ha::describe(config);
  for (SettingView& view : views) {
    const auto set = config.origins.find(view.field);
    const std::string variable = set == config.origins.end() ? "" : set->second.variable;
    if (const std::string file = conf.file_of(variable); !file.empty()) {
      view.origin = variable == view.name ? file : fmt::format("{} ({})", file, variable);
    }
  }
  return views;
}

json settings_json(const Config& config, const NcclConf& conf) {
  json settings = json::array();
  for (const SettingView& view : describe(config, conf)) {
    settings.push_back({{"name", view.name},
                        {"value", view.value},
                        {"default", view.default_value},
                        {"origin", view.origin},
                        {"range", view.range},
                        {"unit", view.unit},
                        {"alias", view.alias},
                        {"topic", view.topic},
                        {"help", view.help}});
  }
  return settings;
}

void print_settings(const Config& config, const NcclConf& conf) {
  print_wrapped("{:<32} {:<12} {:<12} {}\n", "setting", "value", "default", "origin");
  for (const SettingView& view : describe(config, conf)) {
    print_wrapped("{:<32} {:<12} {:<12} {}\n", view.name, view.value.empty() ? "-" : view.value,
                  view.default_value.empty() ? "-" : view.default_value, view.origin);
  }
}

void print_rdma(const std::vector<fabric::NetDevice>& devices, const RdmaView& rdma) {
  for (size_t i = 0; i < devices.size(); ++i) {
    const fabric::NetDevice& d = devices[i];
    const ChosenPort& port = rdma.ports[d.index];
    print_wrapped("  {} {:<12} {}  {}  mtu {}  {} Mbit/s  numa {}  guid {:016x}{}{}\n", i, d.name,
                  port.info.netdev.empty() ? to_text(port.info.link) : port.info.netdev,
                  gid_summary(port), port.info.mtu, d.speed_mbps, d.numa_node, d.guid,
                  d.pci_path.empty() ? "" : "  ", d.pci_path);
    print_wrapped("    GPU memory: {}\n", d.dmabuf        ? "by DMA-BUF"
                                          : d.peer_memory ? "by a peer-memory module"
                                                          : "no, NCCL stages through host memory");
  }
}

void print_interfaces(const std::vector<NetInterface>& chosen, const fabric::SelectionNotes& notes,
                      bool numbered) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    const NetInterface& d = chosen[i];
    print_wrapped("  {} {:<12} {}  mtu {}  {} Mbit/s  numa {}  guid {:016x}{}{}{}{}\n",
                  numbered && d.offered ? std::to_string(i) : "+", d.name, addresses_text(d), d.mtu,
                  d.speed_mbps, d.numa_node, d.guid, d.pci_path.empty() ? "" : "  ", d.pci_path,
                  d.why_not.empty() ? "" : "  ", d.why_not);
  }
  for (const NetInterface& d : notes.left_out) {
    print_wrapped("  - {:<12} {}  not used: {}\n", d.name, addresses_text(d), d.why_not);
  }
  for (const std::string& warning : notes.warnings) {
    print_wrapped("  warning: {}\n", warning);
  }
}

/// Devices that share a port, and what becomes of them.
std::vector<std::string> port_halves_text(const Config& config,
                                          const std::vector<fabric::NetDevice>& devices) {
  std::vector<std::string> lines;
  for (const std::vector<size_t>& group : fabric::group_by_port(devices)) {
    std::string names;
    for (const size_t i : group) {
      names += (names.empty() ? "" : " and ") + devices[i].name;
    }
    if (group.size() > 1) {
      const fabric::NetDevice& first = devices[group.front()];
      lines.push_back(fmt::format(
          "{} are behind one port, {} of NIC {}: {}", names, first.port_name, first.switch_id,
          !config.join_port_halves ? "each is a device, as HA_NCCL_JOIN_PORT_HALVES=0 says"
          : !config.enable_backup  ? "each is a device, as HA_NCCL_ENABLE_BACKUP=0 says"
                                   : "one device of NCCL's"));
    }
  }
  return lines;
}

/// Who drives connections, and why.
std::string progress_text(const Config& config) {
  const ProcessorShare share = processor_share();
  std::string processors = fmt::format("{} usable (", share.usable());
  processors += fmt::format("affinity {}", share.allowed);
  processors += share.quota == 0 ? ", no quota" : fmt::format(", quota {:.2f}", share.quota);
  std::string who = "callers, as HA_NCCL_USE_PROGRESS_THREAD=0 says";
  if (config.use_progress_thread) {
    who = fmt::format("{} progress thread{}, callers where {} not run", config.progress_threads,
                      config.progress_threads == 1 ? "" : "s",
                      config.progress_threads == 1 ? "it does" : "they do");
    if (!threads_drive(config)) {
      who += "; callers first, as there is no processor for each thread beside a caller";
    }
  }
  return fmt::format("processors: {})\n  driven by: {}", processors, who);
}

void print_kernel(const KernelSupport& kernel, const Config& config) {
  print_wrapped("\nkernel\n  UDP segmentation offload {}, receive offload {}\n",
                kernel.segmentation ? "yes" : "no", kernel.coalescing ? "yes" : "no");
  print_wrapped("  socket buffers: {} bytes wanted, {} granted\n", config.dgram_socket_bytes,
                kernel.granted_bytes);
  if (kernel.granted_bytes < config.dgram_socket_bytes) {
    print_wrapped("    for full speed: sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}\n",
                  config.dgram_socket_bytes);
  }
  print_wrapped("  {}\n", progress_text(config));
}

void print_plugin(const PluginSight& plugin) {
  print_wrapped("\nplugin\n  this program uses {}\n  {}\n",
                plugin.here ? plugin.here->file : "what NCCL finds", plugin.text());
  if (const std::string remedy = plugin.remedy(); !remedy.empty()) {
    print_wrapped("    do: {}\n", remedy);
  }
  if (plugin.other_network()) {
    print_wrapped("  NCCL_NET={}: NCCL uses that network and not this plugin\n", plugin.network);
  }
}

/// What NCCL's files set beside settings of the plugin.
void print_conf(const NcclConf& conf) {
  if (!conf.variables.empty()) {
    print_wrapped("\nvariables from NCCL's files\n");
  }
  for (const ConfVariable& one : conf.variables) {
    print_wrapped("  {}={}  {}\n", one.name, one.value, one.file);
  }
}

json conf_json(const NcclConf& conf) {
  json variables = json::array();
  for (const ConfVariable& one : conf.variables) {
    variables.push_back({{"name", one.name}, {"value", one.value}, {"file", one.file}});
  }
  return variables;
}

json plugin_json(const PluginSight& plugin) {
  return {{"file", plugin.here ? plugin.here->file : ""},
          {"nccl_file", plugin.of_nccl ? plugin.of_nccl->file : ""},
          {"nccl_origin", plugin.of_nccl ? plugin.of_nccl->origin : ""},
          {"nccl_net", plugin.network},
          {"remedy", plugin.remedy()}};
}

void show_host(const Config& config, const NcclConf& conf, bool as_json) {
  auto all = fabric::list_interfaces();
  if (!all) {
    refuse_info(all.error());
  }
  fabric::SelectionNotes notes;
  auto chosen = fabric::select_interfaces(*all, config.ifname, config.socket_family, &notes);
  if (!chosen) {
    refuse_info(chosen.error());
  }
  auto rdma = look_at_rdma(config);
  if (!rdma) {
    refuse_info(rdma.error());
  }
  const auto provider = fabric::Provider::make(config, *chosen, 0);
  if (!provider) {
    refuse_info(provider.error());
  }
  const std::vector<fabric::NetDevice>& devices = (*provider)->devices();
  const std::vector<NetInterface> interfaces = *(*provider)->interfaces();  // in order of use
  const bool verbs = devices.front().kind != fabric::datagram_kind;
  const KernelSupport kernel = probe_kernel(config);
  const PluginSight plugin = look_for_plugin(process_environment());
  if (as_json) {
    json device_list = json::array();
    for (const fabric::NetDevice& device : devices) {
      device_list.push_back(device_json(device, *rdma, interfaces));
    }
    json interface_list = json::array();
    for (const NetInterface& interface : interfaces) {
      interface_list.push_back(interface_json(interface));
    }
    const json out{{"plugin", plugin_json(plugin)},
                   {"fabric", (*provider)->setting(devices.front().kind)},
                   {"devices", device_list},
                   {"interfaces", interface_list},
                   {"port_halves", port_halves_text(config, devices)},
                   {"rdma_notes", rdma->notes},
                   {"nccl_conf", conf_json(conf)},
                   {"settings", settings_json(config, conf)},
                   {"kernel",
                    {{"rmem_max", kernel.rmem_max},
                     {"wmem_max", kernel.wmem_max},
                     {"socket_bytes_granted", kernel.granted_bytes},
                     {"udp_segmentation", kernel.segmentation},
                     {"udp_coalescing", kernel.coalescing}}}};
    print_document(document("info", out));
    return;
  }
  print_wrapped(
      "nccl-ha {} ({}), plugin ABI v6 to v12, fabric: {}\n\ndevices (what NCCL will see)\n",
      version_number(), version_commit(), (*provider)->text(devices.front().kind));
  if (verbs) {
    print_rdma(devices, *rdma);
    print_wrapped("\ninterfaces (control connections, and datagrams to peers without RDMA)\n");
  }
  print_interfaces(interfaces, notes, !verbs);
  for (const std::string& line : port_halves_text(config, devices)) {
    print_wrapped("  {}\n", line);
  }
  if (!rdma->notes.empty()) {
    print_wrapped("\nRDMA\n");
    for (const std::string& note : rdma->notes) {
      print_wrapped("  {}\n", note);
    }
  }
  print_kernel(kernel, config);
  print_plugin(plugin);
  print_conf(conf);
  print_wrapped("\n");
  print_settings(config, conf);
}

void run(const InfoOptions& options) {
  if (options.markdown) {
    fmt::print("{}", configuration_markdown());
    return;
  }
  if (options.man) {
    fmt::print("{}", configuration_man_page());
    return;
  }
  const NcclConf conf = take_nccl_conf();
  std::vector<std::string> warnings = conf.problems;
  auto config = load_config(Environment{}, &warnings);
  for (const std::string& warning : warnings) {
    fmt::print(stderr, "nccl-ha info: warning: {}\n", warning);
  }
  if (!config) {
    refuse_info(config.error());
  }
  if (options.pid != 0) {
    show_counters(options.pid, config->counters_dir, options.as_json);
    return;
  }
  if (options.routes) {
    show_routes(*config, options.mesh);
    return;
  }
  if (options.env_only) {
    if (options.as_json) {
      print_document(document("info --env", {{"settings", settings_json(*config, conf)}}));
    } else {
      print_settings(*config, conf);
    }
    return;
  }
  show_host(*config, conf, options.as_json);
}

}  // namespace

void add_info(CLI::App& app) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* info = app.add_subcommand("info",
                                      "Devices, addresses and settings as the plugin sees "
                                      "them on this host");
  info->add_flag("--env", options->env_only, "only the settings: value, default, origin");
  info->add_flag("--json", options->as_json, "as JSON");
  info->add_flag("--markdown", options->markdown, "the configuration page, as in docs/");
  info->add_flag("--man", options->man, "the manual page nccl-ha(7), as in tools/man/");
  info->add_option("--pid", options->pid,
                   "what this process counts, or has counted until it was killed")
      ->check(within(uint32_t{1}, uint32_t{INT32_MAX}))
      ->excludes("--env", "--markdown", "--man");
  CLI::Option* routes =
      info->add_flag("--routes", options->routes,
                     "hosts, cables and routes, from discovery or HA_NCCL_MESH_TOPOLOGY_FILE")
          ->excludes("--env", "--markdown", "--man", "--pid");
  info->add_option("--svg", options->mesh.svg_file, "also draw hosts and cables into this file")
      ->needs(routes);
  info->add_option("--wait", options->mesh.wait_s,
                   "seconds to look for neighbours, where no relay node runs here")
      ->needs(routes)
      ->check(within(0.1, 600.0, "seconds"))
      ->capture_default_str();
  info->callback([options] {
    options->mesh.as_json = options->as_json;
    run(*options);
  });
}

}  // namespace nccl_ha::tools
