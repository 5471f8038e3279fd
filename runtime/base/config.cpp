#include "runtime/base/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "runtime/base/setting_rules.h"

extern char** environ;

namespace nccl_ha {
namespace {

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

/// With the other names that it has.
std::string meaning_text(const SettingView& view) {
  std::string text = view.help;
  if (!view.alias.empty()) {
    text += ". Alias: " + view.alias;
  }
  if (!view.fallback.empty()) {
    text += fmt::format(". When unset, {} counts", view.fallback);
  }
  return text;
}

/// Hyphens as they are typed.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '-' ? "\\-" : std::string(1, c);
  }
  return out;
}

/// A paragraph in lines of at most 100 columns.
std::string filled(std::string_view text) {
  constexpr size_t columns_max = 100;
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const bool fits = column + 1 + word.size() <= columns_max;
    out += column == 0 ? "" : fits ? " " : "\n";
    out += word;
    column = column == 0 || !fits ? word.size() : column + 1 + word.size();
  }
  return out + "\n";
}

void warn_unknown(const Environment& environment, std::vector<std::string>* warnings) {
  for (const std::string& name : environment.names()) {
    if (const auto meant = meant_setting(name)) {
      warnings->push_back(
          fmt::format("environment variable {} is not known and has no effect; did you mean {}? "
                      "(nccl-ha info --env lists all)",
                      name, *meant));
    }
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
  std::vector<std::string> wrong;
  std::vector<std::string> beaten;
  auto read = [&](const char* field, const char* name, const char* alias, const char* fallback,
                  int64_t low, int64_t high, const char* unit, auto* out) {
    std::string variable;
    std::optional<std::string> text;
    for (const char* one : {name, alias, fallback}) {
      if (!text && *one != '\0') {
        variable = one;
        text = environment.get(variable);
      }
    }
    const auto other = *alias == '\0' || variable != name ? std::nullopt : environment.get(alias);
    if (other && *other != *text) {
      beaten.push_back(
          fmt::format("{}={} has no effect, as {}={} is set too", alias, *other, variable, *text));
    }
    if (!text || (text->empty() && variable == fallback)) {
      return;  // NCCL takes an empty variable for none
    }
    if (!parse(*text, low, high, out)) {
      wrong.push_back(fmt::format("{}={}: not a valid value; it must be {}{}{}", variable, *text,
                                  range_text(*out, low, high), *unit == '\0' ? "" : " ", unit));
      return;
    }
    config.origins[field] = {variable};
  };
#define NHA_SETTING(field, name, kind, value, low, high, unit, alias, fallback, help) \
  read(#field, name, alias, fallback, low, high, unit, &config.field);
#include "runtime/base/settings.def"
#undef NHA_SETTING
  SettingFaults faults = wrong_settings(config);
  wrong.insert(wrong.end(), faults.refused.begin(), faults.refused.end());
  if (!wrong.empty()) {
    return fail(Errc::invalid_argument, fmt::format("{}", fmt::join(wrong, "; ")));
  }
  if (warnings != nullptr) {
    warnings->insert(warnings->end(), faults.warned.begin(), faults.warned.end());
    warnings->insert(warnings->end(), beaten.begin(), beaten.end());
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
  std::string topic;
#define NHA_TOPIC(title) topic = title;
#define NHA_SETTING(field, name, kind, value, low, high, unit, alias, fallback, help)            \
  views.push_back({topic, name, #field, value_text(config.field), value_text(defaults.field),    \
                   origin(#field, name), range_text(config.field, low, high), unit, help, alias, \
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
      "the value comes from.\n\n"
      "Names begin with HA_NCCL_. An alias is the name in a founding document (docs/glossary.md)\n"
      "and means the same; where both are set, the name counts. This page is made by\n"
      "`nccl-ha info --markdown`; nccl-ha(7) has the same settings.\n";
  std::string topic;
  for (const SettingView& view : describe(Config{})) {
    if (view.topic != topic) {
      topic = view.topic;
      out += fmt::format(
          "\n## {}\n\n| variable | default | range | unit | meaning |\n|---|---|---|---|---|\n",
          topic);
    }
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", view.name,
                       view.default_value.empty() ? "(empty)" : view.default_value, view.range,
                       view.unit, meaning_text(view));
  }
  return out;
}

std::string configuration_man_page() {
  std::string out =
      ".\\\" Made by nccl-ha info --man.\n"
      ".TH NCCL-HA 7 \"@NHA_DATE@\" \"nccl-ha @PROJECT_VERSION@\" \"Environment\"\n"
      ".SH NAME\nnccl\\-ha \\- environment variables of the network plugin for NCCL\n"
      ".SH DESCRIPTION\n";
  out += filled(
      "libnccl\\-net\\-ha.so reads its settings once, when NCCL initialises it. A bad value is an "
      "error that names variable, value and range; an unknown name with one of the plugin's "
      "prefixes is a warning.");
  out +=
      ".B nccl\\-ha info \\-\\-env\n"
      "shows every setting with its value and where the value comes from.\n"
      ".PP\nAn alias means the same as the name; where both are set, the name counts.\n";
  std::string topic;
  for (const SettingView& view : describe(Config{})) {
    if (view.topic != topic) {
      topic = view.topic;
      out += ".SS " + roff(topic) + "\n";
    }
    out += fmt::format(".TP\n.B {}\n{}Default {}, range {}{}{}.\n", view.name,
                       filled(roff(meaning_text(view)) + "."),
                       view.default_value.empty() ? "(empty)" : roff(view.default_value),
                       roff(view.range), view.unit.empty() ? "" : " ", view.unit);
  }
  return out + ".SH SEE ALSO\n.BR nccl\\-ha (1),\n.BR nccl\\-ha\\-info (1)\n";
}

}  // namespace nccl_ha
