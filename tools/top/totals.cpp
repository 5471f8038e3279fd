#include "tools/top/totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "runtime/telemetry/counters.h"
#include "tools/common/metrics_text.h"

namespace nccl_ha::tools {
namespace {

using StateJson = nlohmann::json;

/// Numbers that name something, or moments: their sum means nothing.
bool can_be_summed(const CounterInfo& counter) {
  const std::string_view unit = counter.unit;
  return counter.kind != CounterKind::level || (!unit.empty() && unit != "ns");
}

/// Of this build: what it does not know has no help, and its kind may be another one.
const CounterInfo* known_counter(const std::string& scope, const std::string& name) {
  for (const CounterScopeInfo& one : counter_scopes()) {
    if (scope != one.name) {
      continue;
    }
    const auto found = std::find_if(one.counters.begin(), one.counters.end(),
                                    [&](const CounterInfo& info) { return name == info.name; });
    return found == one.counters.end() || !can_be_summed(*found) ? nullptr : &*found;
  }
  return nullptr;
}

/// "eth0" of "path 0 eth0" and "shadow 1 eth0".
std::string nic_of(const std::string& label) {
  if (!label.starts_with("path ") && !label.starts_with("shadow ")) {
    return "";
  }
  const size_t number = label.find(' ') + 1;
  const size_t name = label.find(' ', number);
  if (name == std::string::npos) {
    return "";
  }
  return label.substr(name + 1, label.find(' ', name + 1) - name - 1);
}

std::pair<std::string, std::string> series_in(const StateJson& row) {
  return {row.at(0).get<std::string>(), row.at(1).get<std::string>()};
}

std::string process_of(const CounterSnapshot& snapshot) {
  return fmt::format("{}-{}-{}", snapshot.pid, snapshot.instance, snapshot.created_realtime_ns);
}

}  // namespace

CounterTotals::CounterTotals(const std::string& state) {
  if (!state.empty() && !restore(state)) {
    state_read_ = false;
    processes_.clear();
    ended_.clear();
  }
}

bool CounterTotals::restore(const std::string& state) {
  const StateJson whole = StateJson::parse(state, nullptr, false);
  if (!whole.is_object()) {
    return false;
  }
  try {
    for (const StateJson& row : whole.at("ended")) {
      ended_[series_in(row)] = row.at(2).get<uint64_t>();
    }
    for (const auto& [process, rows] : whole.at("processes").items()) {
      for (const StateJson& row : rows) {
        processes_[process][series_in(row)] = {row.at(2).get<uint64_t>(),
                                               row.at(3).get<uint64_t>()};
      }
    }
  } catch (const StateJson::exception&) {
    return false;
  }
  return true;
}

std::string CounterTotals::state() const {
  StateJson ended = StateJson::array();
  for (const auto& [series, value] : ended_) {
    ended.push_back({series.first, series.second, value});
  }
  StateJson processes = StateJson::object();
  for (const auto& [name, process] : processes_) {
    StateJson& rows = processes[name] = StateJson::array();
    for (const auto& [series, kept] : process) {
      rows.push_back({series.first, series.second, kept.before, kept.now});
    }
  }
  return StateJson{{"ended", ended}, {"processes", processes}}.dump(
             -1, ' ', false, StateJson::error_handler_t::replace) +
         "\n";
}

void CounterTotals::take(const CounterReading& reading) {
  levels_.clear();
  std::set<std::string> there;
  for (const ProcessCounterFile& file : reading.files) {
    const std::string name = process_of(file.snapshot);
    there.insert(name);
    take_file(file.snapshot, processes_[name]);
  }
  // One that could not be read this time has not ended.
  for (auto at = processes_.begin(); reading.unreadable.empty() && at != processes_.end();) {
    if (there.contains(at->first)) {
      ++at;
      continue;
    }
    for (const auto& [series, kept] : at->second) {
      ended_[series] += kept.before + kept.now;
    }
    at = processes_.erase(at);
  }
}

void CounterTotals::take_file(const CounterSnapshot& snapshot, Process& process) {
  std::map<Series, uint64_t> sums;
  for (const CounterSnapshot::Block& block : snapshot.blocks) {
    const CounterSnapshot::Scope& scope = snapshot.scopes[block.scope];
    const std::string nic = scope.name == "path" ? nic_of(block.label) : "";
    for (size_t i = 0; i < scope.counters.size() && i < block.values.size(); ++i) {
      const CounterInfo* known = known_counter(scope.name, scope.counters[i].name);
      if (known == nullptr) {
        continue;
      }
      const Series series(scope.name + "_" + known->name, nic);
      if (known->kind == CounterKind::sum) {
        sums[series] += block.values[i];
      } else if (!block.ended) {
        uint64_t& level = levels_[series];
        level = known->kind == CounterKind::most ? std::max(level, block.values[i])
                                                 : level + block.values[i];
      }
    }
  }
  for (const auto& [series, value] : sums) {
    Kept& kept = process[series];
    kept.before += value < kept.now ? kept.now - value : 0;
    kept.now = value;
  }
}

std::string CounterTotals::metrics(const std::string& host) const {
  std::map<Series, uint64_t> all = ended_;
  for (const auto& [name, process] : processes_) {
    for (const auto& [series, kept] : process) {
      all[series] += kept.before + kept.now;
    }
  }
  all.insert(levels_.begin(), levels_.end());
  MetricsText out("nccl_ha_");
  for (const CounterScopeInfo& scope : counter_scopes()) {
    for (const CounterInfo& counter : scope.counters) {
      const std::string series = fmt::format("{}_{}", scope.name, counter.name);
      const bool sum = counter.kind == CounterKind::sum;
      const bool seconds = series.ends_with("_ns");
      const std::string name =
          (seconds ? series.substr(0, series.size() - 2) + "seconds" : series) +
          (sum ? "_total" : "");
      for (auto at = all.lower_bound({series, ""}); at != all.end() && at->first.first == series;
           ++at) {
        MetricsText::Labels labels{{"host", host}};
        if (!at->first.second.empty()) {
          labels.emplace_back("nic", at->first.second);
        }
        const double value = static_cast<double>(at->second) * (seconds ? 1e-9 : 1);
        if (!sum) {
          out.gauge(name, counter.help, value, labels);
        } else if (seconds) {
          out.counter(name, counter.help, value, labels);
        } else {
          out.counter(name, counter.help, at->second, labels);
        }
      }
    }
  }
  return out.text();
}

}  // namespace nccl_ha::tools
