#include "runtime/base/config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "runtime/base/log.h"

extern char** environ;

namespace nccl_ha {
namespace {

constexpr std::string_view our_prefixes[] = {"HA_NCCL_", "MPIB_", "NCCL_MESH_"};

struct Row {
  const char* name;
  const char* fallback;
};
constexpr Row rows[] = {
#define NHA_SETTING(field, name, kind, value, low, high, unit, fallback, source, help) \
  {name, fallback},
#include "runtime/base/settings.def"
#undef NHA_SETTING
};

std::string range_text(const bool&, int64_t, int64_t) { return "0 or 1"; }
std::string range_text(const int64_t&, int64_t low, int64_t high) {
  return fmt::format("{}..{}", low, high);
}
std::string range_text(const std::string&, int64_t, int64_t) { return "text"; }

std::string value_text(bool value) { return value ? "1" : "0"; }
std::string value_text(int64_t value) { return std::to_string(value); }
std::string value_text(const std::string& value) { return value; }

bool parse(const std::string& text, int64_t low, int64_t high, int64_t* out) {
  int64_t value = 0;
  // Hexadecimal too: sites write NCCL's traffic class and the like that way.
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  const char* begin = text.data() + (hexadecimal ? 2 : 0);
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(begin, end, value, hexadecimal ? 16 : 10);
  if (error != std::errc{} || at != end || value < low || value > high) {
    return false;
  }
  *out = value;
  return true;
}
bool parse(const std::string& text, int64_t low, int64_t high, bool* out) {
  int64_t value = 0;
  if (!parse(text, low, high, &value)) {
    return false;
  }
  *out = value != 0;
  return true;
}
bool parse(const std::string& text, int64_t, int64_t, std::string* out) {
  *out = text;
  return true;
}

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

void warn_unknown(const Environment& environment, std::vector<std::string>* warnings) {
  for (const std::string& name : environment.names()) {
    const bool ours =
        std::any_of(std::begin(our_prefixes), std::end(our_prefixes),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    const bool known = std::any_of(std::begin(rows), std::end(rows), [&](const Row& row) {
      return name == row.name || name == row.fallback;
    });
    if (!ours || known) {
      continue;
    }
    const Row* nearest = &rows[0];
    size_t best = std::numeric_limits<size_t>::max();
    for (const Row& row : rows) {
      const size_t distance = edit_distance(name, row.name);
      if (distance < best) {
        best = distance;
        nearest = &row;
      }
    }
    warnings->push_back(
        fmt::format("environment variable {} is not known and has no effect; did "
                    "you mean {}? (nccl-ha info --env lists all)",
                    name, nearest->name));
  }
}

}  // namespace

std::optional<std::string> Environment::get(const std::string& name) const {
  if (variables_) {
    const auto found = variables_->find(name);
    return found == variables_->end() ? std::nullopt : std::optional(found->second);
  }
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::vector<std::string> Environment::names() const {
  std::vector<std::string> result;
  if (variables_) {
    for (const auto& [name, value] : *variables_) {
      result.push_back(name);
    }
    return result;
  }
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    result.emplace_back(text.substr(0, text.find('=')));
  }
  return result;
}

Result<Config> load_config(const Environment& environment, std::vector<std::string>* warnings) {
  Config config;
  std::optional<Error> error;
  auto read = [&](const char* field, const char* name, const char* fallback, int64_t low,
                  int64_t high, auto* out) {
    std::string variable = name;
    auto text = environment.get(variable);
    if (!text && *fallback != '\0') {
      variable = fallback;
      text = environment.get(variable);
    }
    if (!text || error) {
      return;
    }
    if (!parse(*text, low, high, out)) {
      error =
          fail(Errc::invalid_argument, fmt::format("{}={}: not a valid value; it must be {}",
                                                   variable, *text, range_text(*out, low, high)));
      return;
    }
    config.origins[field] = {variable};
  };
#define NHA_SETTING(field, name, kind, value, low, high, unit, fallback, source, help) \
  read(#field, name, fallback, low, high, &config.field);
#include "runtime/base/settings.def"
#undef NHA_SETTING
  if (!error && (config.dgram_window & (config.dgram_window - 1)) != 0) {
    error = fail(
        Errc::invalid_argument,
        fmt::format("HA_NCCL_DGRAM_WINDOW={}: it must be a power of two", config.dgram_window));
  }
  if (!error && config.dgram_mtu != 0 && config.dgram_mtu < 1280) {
    error = fail(Errc::invalid_argument,
                 fmt::format("HA_NCCL_DGRAM_MTU={}: it must be 0 (discover) or 1280..65535",
                             config.dgram_mtu));
  }
  if (error) {
    return *error;
  }
  if (warnings != nullptr) {
    warn_unknown(environment, warnings);
  }
  return config;
}

std::vector<SettingView> describe(const Config& config) {
  std::vector<SettingView> views;
  const Config defaults;
  auto origin = [&](const std::string& field, const std::string& name) -> std::string {
    const auto found = config.origins.find(field);
    if (found == config.origins.end()) {
      return "default";
    }
    return found->second.variable == name ? "environment"
                                          : "environment (" + found->second.variable + ")";
  };
#define NHA_SETTING(field, name, kind, value, low, high, unit, fallback, source, help)            \
  views.push_back({name, #field, value_text(config.field), value_text(defaults.field),            \
                   origin(#field, name), range_text(config.field, low, high), unit, help, source, \
                   fallback});
#include "runtime/base/settings.def"
#undef NHA_SETTING
  return views;
}

std::string configuration_markdown() {
  std::string out =
      "# Configuration\n\n"
      "All settings are environment variables, read once when NCCL initialises the plugin. A bad\n"
      "value is an error that names variable, value and range; an unknown name with one of our\n"
      "prefixes is a warning. `nccl-ha info --env` shows every setting with its value and where\n"
      "the value comes from. This page is made by `nccl-ha info --markdown`.\n\n"
      "| variable | default | range | unit | meaning |\n|---|---|---|---|---|\n";
  for (const SettingView& view : describe(Config{})) {
    std::string help = view.help;
    if (!view.fallback.empty()) {
      help += fmt::format(". When unset, {} is honoured", view.fallback);
    }
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", view.name,
                       view.default_value.empty() ? "(empty)" : view.default_value, view.range,
                       view.unit, help);
  }
  return out;
}

}  // namespace nccl_ha
