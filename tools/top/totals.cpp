#include "tools/top/totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
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

/// Rows of a first and a second key, and a number.
template <class Map>
StateJson rows_of(const Map& map) {
  StateJson rows = StateJson::array();
  for (const auto& [key, value] : map) {
    rows.push_back({key.first, key.second, value});
  }
  return rows;
}

template <class Map>
void read_rows(const StateJson& rows, Map& map) {
  using Key = typename Map::key_type;
  for (const StateJson& row : rows) {
    map[{row.at(0).get<typename Key::first_type>(), row.at(1).get<std::string>()}] =
        row.at(2).get<uint64_t>();
  }
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
    read_rows(whole.at("ended"), ended_);
    for (const auto& [name, process] : whole.at("processes").items()) {
      read_rows(process.at("last"), processes_[name].last);
      read_rows(process.at("sums"), processes_[name].sums);
    }
  } catch (const StateJson::exception&) {
    return false;
  }
  return true;
}

std::string CounterTotals::state() const {
  StateJson processes = StateJson::object();
  for (const auto& [name, process] : processes_) {
    processes[name] = {{"last", rows_of(process.last)}, {"sums", rows_of(process.sums)}};
  }
  return StateJson{{"ended", rows_of(ended_)}, {"processes", processes}}.dump(
             -1, ' ', false, StateJson::error_handler_t::replace) +
         "\n";
}

void CounterTotals::add(const Sums& sums, Sums& to) {
  for (const auto& [series, value] : sums) {
    to[series] += value;
  }
}

void CounterTotals::take(const CounterReading& reading) {
  levels_.clear();
  std::set<std::string> there;
  for (const ProcessCounterFile& file : reading.files) {
    const std::string name = process_of(file.snapshot);
    there.insert(name);
    take_file(file.snapshot, processes_[name]);
  }
  for (auto at = processes_.begin(); at != processes_.end();) {
    const auto pid = static_cast<uint32_t>(std::strtoul(at->first.c_str(), nullptr, 10));
    // One that could not be read this time has not ended.
    if (there.contains(at->first) ||
        std::ranges::find(reading.unreadable_pids, pid) != reading.unreadable_pids.end()) {
      ++at;
      continue;
    }
    add(at->second.sums, ended_);
    at = processes_.erase(at);
  }
}

void CounterTotals::take_file(const CounterSnapshot& snapshot, Process& process) {
  const auto before = std::exchange(process.last, {});
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
        const std::pair<uint64_t, std::string> counter(block.id, series.first);
        const auto known_last = before.find(counter);
        const uint64_t last = known_last == before.end() ? 0 : known_last->second;
        const uint64_t value = block.values[i];
        process.sums[series] += value >= last ? value - last : value;
        process.last[counter] = value;
      } else if (!block.ended) {
        uint64_t& level = levels_[series];
        level = known->kind == CounterKind::most ? std::max(level, block.values[i])
                                                 : level + block.values[i];
      }
    }
  }
}

std::string CounterTotals::metrics(const std::string& host) const {
  Sums all = ended_;
  for (const auto& [name, process] : processes_) {
    add(process.sums, all);
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
