#include "tools/agent/settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace nccl_ha::tools {
namespace {

using AgentJson = nlohmann::json;

/// Reads one object; each key is taken once, and what nobody takes is an error.
class ObjectReader {
 public:
  ObjectReader(const AgentJson& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) {
      refuse("", "an object in braces is needed");
    }
  }

  bool has(const char* key) const { return object_.is_object() && object_.contains(key); }
  void whole_number(const char* key, double low, double high,
                    const std::function<void(double)>& take) {
    number(key, low, high, [&](double value) {
      if (value != std::trunc(value)) {
        refuse(key, "a whole number is needed");
      } else {
        take(value);
      }
    });
  }
  void number(const char* key, double low, double high, const std::function<void(double)>& take) {
    if (const AgentJson* value = find(key)) {
      if (!value->is_number() || value->get<double>() < low || value->get<double>() > high) {
        refuse(key, fmt::format("a number from {} to {} is needed", low, high));
      } else {
        take(value->get<double>());
      }
    }
  }
  template <class T>
  void whole(const char* key, double low, double high, T& out) {
    whole_number(key, low, high, [&](double value) { out = static_cast<T>(value); });
  }
  void real(const char* key, double low, double high, double& out) {
    number(key, low, high, [&](double value) { out = value; });
  }
  void milliseconds(const char* key, double low, double high, Duration& out) {
    number(key, low, high,
           [&](double value) { out = Duration(static_cast<int64_t>(value * 1e6)); });
  }
  void flag(const char* key, bool& out) {
    if (const AgentJson* value = find(key)) {
      if (value->is_boolean()) {
        out = value->get<bool>();
      } else {
        refuse(key, "true or false is needed");
      }
    }
  }
  void text(const char* key, std::string& out) {
    if (const AgentJson* value = find(key)) {
      if (value->is_string()) {
        out = value->get<std::string>();
      } else {
        refuse(key, "a text in quotes is needed");
      }
    }
  }
  /// A text that `take` understands.
  void parsed(const char* key, const std::function<Result<void>(const std::string&)>& take) {
    std::string value;
    const bool there = has(key);
    text(key, value);
    if (there && error_.empty()) {
      if (auto taken = take(value); !taken) {
        refuse(key, taken.error().what);
      }
    }
  }
  void each(const char* key, size_t most,
            const std::function<Result<void>(const AgentJson&)>& take) {
    const AgentJson* value = find(key);
    if (value == nullptr) {
      return;
    }
    if (!value->is_array() || value->size() > most) {
      refuse(key, fmt::format("a list of at most {} is needed", most));
      return;
    }
    for (const AgentJson& element : *value) {
      if (auto taken = take(element); !taken) {
        refuse(key, taken.error().what);
      }
    }
  }
  void object(const char* key, const std::function<Result<void>(ObjectReader&)>& take) {
    if (const AgentJson* value = find(key)) {
      ObjectReader inner(*value, where_ + key + ".");
      if (auto taken = take(inner); !taken) {
        refuse(taken.error().what);
      }
    }
  }
  Result<void> finish() {
    if (object_.is_object()) {
      for (const auto& [key, value] : object_.items()) {
        if (std::find(taken_.begin(), taken_.end(), key) == taken_.end()) {
          refuse(key.c_str(), "there is no such setting");
        }
      }
    }
    return error_.empty() ? Result<void>() : fail(Errc::invalid_argument, error_);
  }

 private:
  const AgentJson* find(const char* key) {
    taken_.emplace_back(key);
    return has(key) ? &object_.at(key) : nullptr;
  }
  void refuse(const char* key, const std::string& what) {
    refuse(fmt::format("{}{}: {}", where_, key, what));
  }
  /// The first thing that is wrong is told.
  void refuse(const std::string& what) {
    if (error_.empty()) {
      error_ = what;
    }
  }

  const AgentJson& object_;
  const std::string where_;
  std::vector<std::string> taken_;
  std::string error_;
};

Result<void> take_point(const std::string& text, std::optional<SocketPoint>& out) {
  if (text.empty()) {
    out.reset();
    return {};
  }
  auto point = parse_point(text);
  if (!point) {
    return point.error();
  }
  out = *point;
  return {};
}

Result<void> read_telemetry(ObjectReader& in, AgentSettings& settings) {
  in.parsed("listen",
            [&](const std::string& text) { return take_point(text, settings.telemetry); });
  if (in.has("allow")) {
    settings.allow.clear();
  }
  in.each("allow", 256, [&](const AgentJson& value) -> Result<void> {
    if (!value.is_string()) {
      return fail(Errc::invalid_argument, "networks are texts, as in \"10.0.0.0/8\"");
    }
    auto network = parse_address_range(value.get<std::string>());
    if (!network) {
      return network.error();
    }
    settings.allow.push_back(*network);
    return {};
  });
  in.text("keys", settings.key_file);
  in.flag("unauthenticated", settings.unauthenticated);
  in.milliseconds("age_ms", 1, 600000, settings.age_max);
  return in.finish();
}

Result<void> read_reports(ObjectReader& in, AgentSettings& settings) {
  in.parsed("to", [&](const std::string& text) { return take_point(text, settings.report_to); });
  in.milliseconds("every_ms", 1, 600000, settings.report_every);
  return in.finish();
}

Result<void> read_policy(ObjectReader& in, ha::SharePolicy::Options& policy) {
  in.real("gain", 0, 10, policy.gain);
  in.milliseconds("smoothing_ms", 0.001, 60000, policy.smoothing);
  in.real("speed", 0.001, 1e6, policy.speed_max);
  in.real("speed_after_turns", 0.001, 1e6, policy.speed_min);
  in.whole("floor", 0, 1024, policy.floor);
  in.whole("ceiling", 0, 1024, policy.ceiling);
  in.whole("backpressure_on", 1, 255, policy.pressure_on);
  in.whole("backpressure_off", 0, 254, policy.pressure_off);
  in.milliseconds("backpressure_hold_ms", 0.001, 60000, policy.hold);
  in.milliseconds("backpressure_hold_most_ms", 0.001, 600000, policy.hold_max);
  in.milliseconds("fresh_ms", 0.001, 600000, policy.fresh_for);
  in.milliseconds("stale_ms", 0.001, 600000, policy.stale_after);
  if (auto read = in.finish(); !read) {
    return read;
  }
  if (const char* wrong = ha::SharePolicy::wrong_with(policy)) {
    return fail(Errc::invalid_argument, fmt::format("policy: {}", wrong));
  }
  return {};
}

Result<void> read_rail(const AgentJson& value, RailSettings& rail) {
  ObjectReader in(value, "rails.");
  in.text("interface", rail.interface);
  in.whole("speed_mbps", 0, 1e8, rail.speed_mbps);
  return in.finish();
}

/// Of a service, which is for all users of its host; people's own begin there (login.defs).
constexpr uid_t first_person = 1000;

void read_users(ObjectReader& in, AgentSettings& settings) {
  settings.all_users = geteuid() < first_person && !in.has("users");
  in.each("users", 256, [&](const AgentJson& value) -> Result<void> {
    if (!value.is_number_unsigned()) {
      return fail(Errc::invalid_argument, "users are numbers, as `id -u` tells");
    }
    settings.users.push_back(value.get<uid_t>());
    return {};
  });
}

}  // namespace

Result<AgentSettings> AgentSettings::parse(const std::string& text) {
  AgentSettings settings;
  settings.telemetry = SocketPoint{*parse_address("0.0.0.0"), 7471};
  settings.page = SocketPoint{*parse_address("127.0.0.1"), 7470};
  settings.allow = {*parse_address_range("127.0.0.0/8"), *parse_address("::1")};
  AgentJson json = AgentJson::object();
  if (!text.empty()) {
    json = AgentJson::parse(text, nullptr, false, true);
    if (json.is_discarded()) {
      // Once more for the place of the mistake, which only an exception tells.
      try {
        json = AgentJson::parse(text, nullptr, true, true);
      } catch (const AgentJson::parse_error& error) {
        return fail(Errc::invalid_argument, fmt::format("it is no JSON: {}", error.what()));
      }
    }
  }
  ObjectReader in(json, "");
  in.text("directory", settings.directory);
  in.whole("slots", 1, 1 << 20, settings.slots);
  in.whole("connections_per_process", 1, 1 << 20, settings.connections_per_client);
  in.whole("processes", 1, 1 << 20, settings.clients);
  read_users(in, settings);
  in.flag("counters_of_all_users", settings.all_counters);
  in.milliseconds("heartbeat_ms", 1, 10000, settings.heartbeat);
  in.milliseconds("drain_ms", 0, 86400000, settings.drain);
  in.parsed("page", [&](const std::string& value) { return take_point(value, settings.page); });
  in.object("telemetry", [&](ObjectReader& inner) { return read_telemetry(inner, settings); });
  in.object("reports", [&](ObjectReader& inner) { return read_reports(inner, settings); });
  in.object("policy", [&](ObjectReader& inner) { return read_policy(inner, settings.policy); });
  size_t rail = 0;
  in.each("rails", settings.rails.size(),
          [&](const AgentJson& value) { return read_rail(value, settings.rails[rail++]); });
  if (auto read = in.finish(); !read) {
    return read.error();
  }
  if (!settings.directory.empty() && settings.directory.front() != '/') {
    return fail(Errc::invalid_argument, "directory: an absolute path is needed");
  }
  if (!settings.rails[0].interface.empty() &&
      settings.rails[0].interface == settings.rails[1].interface) {
    return fail(Errc::invalid_argument,
                fmt::format("rails: both are {}", settings.rails[0].interface));
  }
  return settings;
}

Result<AgentSettings> AgentSettings::read(const std::string& path) {
  std::string text;
  std::error_code error;
  const bool there = !path.empty() && std::filesystem::exists(path, error);
  if (error) {
    return fail(Errc::system, fmt::format("cannot read the settings in {}", path), error.value());
  }
  if (there) {
    if (std::filesystem::is_directory(path, error)) {
      return fail(Errc::invalid_argument, fmt::format("{} is a folder, no file of settings", path));
    }
    std::ifstream file(path);
    if (!file) {
      return fail(Errc::system, fmt::format("cannot read the settings in {}", path), errno);
    }
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  auto settings = parse(text);
  if (!settings) {
    return fail(Errc::invalid_argument, fmt::format("{}: {}", path, settings.error().what));
  }
  if (!settings->key_file.empty()) {
    auto keys = TelemetryKeys::read(settings->key_file);
    if (!keys) {
      return keys.error();
    }
    settings->keys = std::move(*keys);
  }
  return settings;
}

void AgentSettings::keep_fixed(const AgentSettings& in_force) {
  directory = in_force.directory;
  directory_given = in_force.directory_given;
  slots = in_force.slots;
  heartbeat = in_force.heartbeat;
  page = in_force.page;
  telemetry = in_force.telemetry;
  age_max = in_force.age_max;
}

std::string AgentSettings::fixed_differences(const AgentSettings& next) const {
  std::string out;
  const auto compare = [&out](const char* name, bool same) {
    if (!same) {
      out += out.empty() ? name : fmt::format(", {}", name);
    }
  };
  const auto text = [](const std::optional<SocketPoint>& point) {
    return point ? point->text() : std::string();
  };
  compare("directory", directory_given || directory == next.directory);
  compare("slots", slots == next.slots);
  compare("heartbeat_ms", heartbeat == next.heartbeat);
  compare("page", text(page) == text(next.page));
  compare("telemetry.age_ms", age_max == next.age_max);
  compare("telemetry.listen", text(telemetry) == text(next.telemetry));
  return out;
}

}  // namespace nccl_ha::tools
