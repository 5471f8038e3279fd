// The configuration table: every setting with type, default, range and help in one place
// (runtime/base/settings.def).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha {

namespace setting_kind {
using flag = bool;
using number = int64_t;
using text = std::string;
}  // namespace setting_kind

/// Where a value came from.
struct SettingOrigin {
  std::string variable;  ///< the environment variable; empty: the default
};

/// All settings, read once.
struct Config {
#define NHA_SETTING(field, name, kind, value, low, high, unit, alias, fallback, help) \
  setting_kind::kind field = value;
#include "runtime/base/settings.def"
#undef NHA_SETTING
  /// Field name -> environment variable, for those that are not at their default's origin.
  std::map<std::string, SettingOrigin> origins;
};

/// The environment, or a test's idea of it.
class Environment {
 public:
  Environment() = default;  ///< the process's
  explicit Environment(std::map<std::string, std::string> variables)
      : variables_(std::move(variables)) {}
  std::optional<std::string> get(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  std::optional<std::map<std::string, std::string>> variables_;
};

/// The only place where settings are checked.  Bad values are an error that names each with its
/// variable, value and range, or the setting that it contradicts (runtime/base/setting_rules.h).
/// Names that look like ours and that we do not know are put into `warnings` (may be null) with the
/// nearest one that we do.
Result<Config> load_config(const Environment& environment, std::vector<std::string>* warnings);

/// One row for people.
struct SettingView {
  std::string topic;
  std::string name;
  std::string field;
  std::string value;
  std::string default_value;
  std::string origin;  ///< "default", "environment" or "environment (NAME)" for another name
  std::string range;
  std::string unit;
  std::string help;
  std::string alias;     ///< another name of it; empty: none
  std::string fallback;  ///< NCCL's variable; empty: none
};
std::vector<SettingView> describe(const Config& config);

/// docs/configuration.md.
std::string configuration_markdown();
/// nccl-ha(7), without what CMake puts into it (@NHA_DATE@, @PROJECT_VERSION@).
std::string configuration_man_page();

}  // namespace nccl_ha
