#include "runtime/base/setting_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "runtime/base/cpu.h"
#include "runtime/base/fault_plan.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/port_range.h"

namespace nccl_ha {
namespace {

constexpr std::string_view our_prefixes[] = {"HA_NCCL_", "MPIB_", "NCCL_MESH_"};
/// How the prefixes are mistaken; each is as good as the one beside it.
constexpr std::pair<std::string_view, std::string_view> mistaken_prefixes[] = {
    {"NCCL_HA_", "HA_NCCL_"},   {"NCCLHA_", "HA_NCCL_"},     {"HANCCL_", "HA_NCCL_"},
    {"HA_NCL_", "HA_NCCL_"},    {"HA_NCCLL_", "HA_NCCL_"},   {"HA_NNCL_", "HA_NCCL_"},
    {"HA_NCC_", "HA_NCCL_"},    {"HA_CCL_", "HA_NCCL_"},     {"AH_NCCL_", "HA_NCCL_"},
    {"HA_CNCL_", "HA_NCCL_"},   {"HA-NCCL-", "HA_NCCL_"},    {"HA_NCCL-", "HA_NCCL_"},
    {"HA_MESH_", "NCCL_MESH_"}, {"NCL_MESH_", "NCCL_MESH_"}, {"NCCLMESH_", "NCCL_MESH_"},
    {"HA_MPIB_", "MPIB_"},      {"NCCL_MPIB_", "MPIB_"}};
/// A whole name that differs in so few characters is meant; shorter names are others'.
constexpr size_t slips_max = 2;
constexpr size_t slips_from_length = 12;

struct Row {
  std::string_view field;
  std::string_view name;
  std::string_view alias;
  std::string_view fallback;
};
constexpr Row rows[] = {
#define NHA_SETTING(field, name, kind, value, low, high, unit, alias, fallback, help) \
  {#field, name, alias, fallback},
#include "runtime/base/settings.def"
#undef NHA_SETTING
};

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : our_prefixes) {
    if (name.starts_with(prefix)) {
      return name.substr(prefix.size());
    }
  }
  return name;
}

const Row& nearest_row(std::string_view name) {
  const Row* nearest = &rows[0];
  size_t best = std::numeric_limits<size_t>::max();
  for (const Row& row : rows) {
    // A part of the name is enough: HA_NCCL_BACKUP is HA_NCCL_ENABLE_BACKUP.
    const std::string_view rest = without_prefix(name);
    const bool part = rest.size() >= 4 && row.name.ends_with(rest) &&
                      row.name.starts_with(name.substr(0, name.size() - rest.size()));
    size_t distance = edit_distance(name, row.name);
    distance = part ? std::min<size_t>(distance, 1) : distance;
    distance = row.alias.empty() ? distance : std::min(distance, edit_distance(name, row.alias));
    if (distance < best) {
      best = distance;
      nearest = &row;
    }
  }
  return *nearest;
}

/// The name by which a field was set; its own where it was not.
std::string name_of(const Config& config, std::string_view field) {
  if (const auto origin = config.origins.find(std::string(field)); origin != config.origins.end()) {
    return origin->second.variable;
  }
  const auto* row = std::find_if(std::begin(rows), std::end(rows),
                                 [&](const Row& one) { return one.field == field; });
  return row == std::end(rows) ? std::string(field) : std::string(row->name);
}

bool is_set(const Config& config, std::string_view field) {
  return config.origins.contains(std::string(field));
}

/// "HA_NCCL_RTO_MS=5", or "HA_NCCL_RTO_MS=1000 (the default)".
std::string shown(const Config& config, std::string_view field, int64_t value) {
  return fmt::format("{}={}{}", name_of(config, field), value,
                     is_set(config, field) ? "" : " (the default)");
}

std::string words(std::initializer_list<std::string_view> allowed) {
  std::string text;
  for (const std::string_view* one = allowed.begin(); one != allowed.end(); ++one) {
    text += one == allowed.begin() ? "" : one + 1 == allowed.end() ? " or " : ", ";
    text += one->empty() ? std::string_view("nothing") : *one;
  }
  return text;
}

class Rules {
 public:
  explicit Rules(const Config& config) : config_(config) {}

  SettingFaults run() {
    choices();
    lists();
    sizes();
    times();
    return {std::move(wrong_), std::move(warned_)};
  }

 private:
  void text(std::string_view field, const std::string& value, std::string_view why) {
    wrong_.push_back(fmt::format("{}={}: {}", name_of(config_, field), value, why));
  }
  void one_of(std::string_view field, const std::string& value,
              std::initializer_list<std::string_view> allowed) {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      text(field, value, "use " + words(allowed));
    }
  }
  template <class T>
  void readable(std::string_view field, const std::string& value, const Result<T>& parsed) {
    if (!parsed) {
      const std::string& why = parsed.error().what;
      const std::string named = name_of(config_, field) + ": ";
      text(field, value, why.starts_with(named) ? why.substr(named.size()) : why);
    }
  }

  void choices() {
    one_of("fabric", config_.fabric, {"auto", "verbs", "ud", "datagram"});
    one_of("socket_family", config_.socket_family, {"", "AF_INET", "AF_INET6"});
    one_of("ib_addr_family", config_.ib_addr_family, {"AF_INET", "AF_INET6"});
    one_of("mesh_relay", config_.mesh_relay, {"auto", "inline", "off"});
    one_of("mesh_topology", config_.mesh_topology,
           {"auto", "", "full", "ring", "line", "star", "partial"});
    if (config_.encrypt && config_.key_file.empty()) {
      text("encrypt", "1", "HA_NCCL_KEY_FILE has to name a file with keys");
    }
  }

  void lists() {
    readable("listen_ports", config_.listen_ports, parse_port_range(config_.listen_ports));
    readable("progress_cpus", config_.progress_cpus, parse_cpu_list(config_.progress_cpus));
    readable("dgram_faults", config_.dgram_faults, parse_fault_plan(config_.dgram_faults));
    readable("mesh_peers", config_.mesh_peers, parse_addresses(config_.mesh_peers));
    if (!config_.ib_addr_range.empty()) {
      readable("ib_addr_range", config_.ib_addr_range, parse_address_range(config_.ib_addr_range));
    }
    for (const auto& [field, value] :
         {std::pair("ifname", &config_.ifname), std::pair("mesh_ifname", &config_.mesh_ifname),
          std::pair("ib_hca", &config_.ib_hca)}) {
      names(field, *value, field == std::string_view("ib_hca"));
    }
    for (const auto& [field, value] :
         {std::pair("counters_dir", &config_.counters_dir),
          std::pair("trace_dir", &config_.trace_dir), std::pair("agent_dir", &config_.agent_dir)}) {
      if (!value->empty() && value->front() != '/') {
        text(field, *value, "a folder's whole path is needed, from / on");
      }
    }
    page();
  }

  /// The variable that was set is NCCL's own: a site may have a value there that NCCL puts up with.
  bool is_of_nccl(std::string_view field) const {
    const std::string name = name_of(config_, field);
    return name.starts_with("NCCL_") && !name.starts_with("NCCL_MESH_");
  }

  /// Prefixes or names of devices between commas; of RDMA devices a port may follow a colon.
  void names(std::string_view field, const std::string& value, bool ports) {
    std::string_view rest = value;
    rest.remove_prefix(rest.starts_with('^') ? 1 : 0);
    rest.remove_prefix(rest.starts_with('=') ? 1 : 0);
    if (rest.empty() && !value.empty()) {
      text(field, value, "a name has to follow");
    }
    for (const char wrong : {' ', '\t', ';', '^', '='}) {
      if (rest.find(wrong) == std::string_view::npos) {
        continue;
      }
      const std::string why = fmt::format(
          "'{}' cannot be in a name; write names separated by commas, with ^ or = once in front of "
          "all",
          wrong);
      if ((wrong == ' ' || wrong == '\t') && is_of_nccl(field)) {
        warned_.push_back(fmt::format("{}={}: {}", name_of(config_, field), value, why));
      } else {
        text(field, value, why);
        return;
      }
    }
    for (bool more = ports; more;) {
      const size_t comma = rest.find(',');
      const std::string_view part = rest.substr(0, comma);
      more = comma != std::string_view::npos;
      rest = more ? rest.substr(comma + 1) : std::string_view{};
      const size_t colon = part.find(':');
      unsigned port = 0;
      if (colon == std::string_view::npos) {
        continue;
      }
      const std::string_view digits = part.substr(colon + 1);
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
      if (error != std::errc{} || end != digits.data() + digits.size() || port < 1 || port > 255) {
        text(field, value, fmt::format("'{}': a port is a number from 1 to 255", part));
      }
    }
  }

  void page() {
    const std::string& value = config_.mesh_page;
    if (value.empty()) {
      return;
    }
    const auto point = parse_host_port(value);
    if (!point || !parse_address(point->host)) {
      text("mesh_page", value, "an address and a port are needed, as in 127.0.0.1:7473");
    }
  }

  void sizes() {
    if ((config_.dgram_window & (config_.dgram_window - 1)) != 0) {
      text("dgram_window", std::to_string(config_.dgram_window), "it must be a power of two");
    }
    if (config_.dgram_mtu != 0 && config_.dgram_mtu < 1280) {
      text("dgram_mtu", std::to_string(config_.dgram_mtu),
           "it must be 0 (discover) or 1280..65535 bytes");
    }
    if (config_.mpib_hca_sout.empty() != config_.mpib_hca_sup.empty()) {
      const bool sout = !config_.mpib_hca_sout.empty();
      text(sout ? "mpib_hca_sout" : "mpib_hca_sup",
           sout ? config_.mpib_hca_sout : config_.mpib_hca_sup,
           "of HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP only one is set: set both, or neither");
    } else if (!config_.mpib_hca_sout.empty() && !config_.enable_backup) {
      text("enable_backup", "0",
           "HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP: paths on other rails need "
           "HA_NCCL_ENABLE_BACKUP=1");
    } else if (!config_.mpib_hca_sout.empty() && config_.mpib_hca_sout == config_.mpib_hca_sup) {
      text("mpib_hca_sup", config_.mpib_hca_sup,
           "HA_NCCL_HCA_SOUT is the same: they are to be two");
    }
  }

  /// `low` must not be greater than `high`; both in the unit given with them, in nanoseconds.
  void order(std::string_view low, int64_t low_value, int64_t low_unit, std::string_view high,
             int64_t high_value, int64_t high_unit, std::string_view why) {
    if (low_value * low_unit > high_value * high_unit) {
      wrong_.push_back(too_long(low, low_value, high, high_value, why));
    }
  }
  std::string too_long(std::string_view low, int64_t low_value, std::string_view high,
                       int64_t high_value, std::string_view why) const {
    return fmt::format("{} must not be longer than {}: {}", shown(config_, low, low_value),
                       shown(config_, high, high_value), why);
  }

  void times() {
    constexpr int64_t us = 1000;
    constexpr int64_t ms = 1000 * us;
    order("dgram_rto_min_us", config_.dgram_rto_min_us, us, "dgram_rto_max_ms",
          config_.dgram_rto_max_ms, ms, "they bound the same retransmission timeout");
    order("dgram_rto_init_ms", config_.dgram_rto_init_ms, ms, "dgram_rto_max_ms",
          config_.dgram_rto_max_ms, ms, "retransmission timeouts end there");
    if (config_.enable_backup && config_.rto_ms > config_.retry_budget_ms) {
      // Who sets one of them knows of no conflict; a job without faults runs as before.
      const bool both = is_set(config_, "rto_ms") && is_set(config_, "retry_budget_ms");
      (both ? wrong_ : warned_)
          .push_back(too_long("rto_ms", config_.rto_ms, "retry_budget_ms", config_.retry_budget_ms,
                              "a connection would fail before its path is replaced"));
    }
    if (config_.mesh_dead_ms < 2 * config_.mesh_hello_ms) {
      wrong_.push_back(fmt::format(
          "{} must be at least twice {}, as one lost packet would else lose a neighbour",
          shown(config_, "mesh_dead_ms", config_.mesh_dead_ms),
          shown(config_, "mesh_hello_ms", config_.mesh_hello_ms)));
    }
  }

  const Config& config_;
  std::vector<std::string> wrong_;
  std::vector<std::string> warned_;
};

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t up = row[j];
      row[j] = std::min({up + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = up;
    }
  }
  return row.back();
}

SettingFaults wrong_settings(const Config& config) { return Rules(config).run(); }

std::optional<SlowRetries> slow_retries(const Config& config) {
  const char* field = config.force_ib_timeout != 0 ? "force_ib_timeout" : "ib_timeout";
  const int64_t timeout =
      config.force_ib_timeout != 0 ? config.force_ib_timeout : config.ib_timeout;
  const int64_t sends = config.ib_retry_count + 1;
  // At the least: a device may take four times as long (IBTA 9.7.6.1.3).
  const auto window_ms = [&](int64_t code) {
    return static_cast<int64_t>(4.096e-3 * static_cast<double>(sends) *
                                static_cast<double>(int64_t{1} << code));
  };
  const int64_t window = window_ms(timeout);
  if (window <= config.rto_ms && window <= config.retry_budget_ms) {
    return std::nullopt;
  }
  int64_t fits = timeout;
  while (fits > 1 && window_ms(fits) > std::min(config.rto_ms, config.retry_budget_ms)) {
    --fits;
  }
  const std::string budget =
      window > config.retry_budget_ms
          ? " and than " + shown(config, "retry_budget_ms", config.retry_budget_ms)
          : "";
  return SlowRetries{
      fmt::format("RDMA NICs retry for {} ms or more before they report a dead path ({}, {}), "
                  "longer than {}{}",
                  window, shown(config, field, timeout),
                  shown(config, "ib_retry_count", config.ib_retry_count),
                  shown(config, "rto_ms", config.rto_ms), budget),
      fmt::format("set HA_NCCL_FORCE_IB_TIMEOUT={}, which wins over a site's NCCL_IB_TIMEOUT, or "
                  "raise the other settings",
                  fits)};
}

std::optional<std::string> meant_setting(std::string_view variable) {
  const bool known = std::any_of(std::begin(rows), std::end(rows), [&](const Row& row) {
    return variable == row.name || variable == row.alias || variable == row.fallback;
  });
  if (known) {
    return std::nullopt;
  }
  std::string name(variable);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (std::any_of(std::begin(our_prefixes), std::end(our_prefixes), begins)) {
    return std::string(nearest_row(name).name);
  }
  for (const auto& [mistaken, right] : mistaken_prefixes) {
    if (name.starts_with(mistaken)) {
      return std::string(nearest_row(std::string(right) + name.substr(mistaken.size())).name);
    }
  }
  if (name.starts_with("NCCL_")) {
    return std::nullopt;  // NCCL's own, of which some differ from ours by little
  }
  const Row& nearest = nearest_row(name);
  const bool slip =
      nearest.name.size() >= slips_from_length && edit_distance(name, nearest.name) <= slips_max;
  return slip ? std::optional(std::string(nearest.name)) : std::nullopt;
}

}  // namespace nccl_ha
