#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/top/stat.h"

namespace nccl_ha::tools {
namespace {

/// Labels of a block: whose it is, and what it is below.
std::vector<prometheus::ClientMetric::Label> labels_of(
    const CounterSnapshot& snapshot, const CounterSnapshot::Block& block,
    const std::map<uint64_t, const CounterSnapshot::Block*>& by_id) {
  std::vector<prometheus::ClientMetric::Label> labels{
      {"host", snapshot.host},
      {"pid", std::to_string(snapshot.pid)},
      {"instance", std::to_string(snapshot.instance)},
      {"program", snapshot.program},
      {"id", std::to_string(block.id)}};
  const CounterSnapshot::Block* at = &block;
  while (at != nullptr) {
    labels.push_back({snapshot.scopes[at->scope].name, at->label});
    const auto above = by_id.find(at->parent);
    // Parents are older: a damaged file does not go round.
    at = above == by_id.end() || above->second->id >= at->id ? nullptr : above->second;
  }
  return labels;
}

}  // namespace

std::string stat_prometheus(const CounterReading& reading) {
  std::map<std::string, prometheus::MetricFamily> families;
  for (const ProcessCounterFile& file : reading.files) {
    const CounterSnapshot& snapshot = file.snapshot;
    std::map<uint64_t, const CounterSnapshot::Block*> by_id;
    for (const auto& block : snapshot.blocks) {
      by_id[block.id] = &block;
    }
    for (const auto& block : snapshot.blocks) {
      const CounterSnapshot::Scope& scope = snapshot.scopes[block.scope];
      for (size_t i = 0; !block.ended && i < block.values.size(); ++i) {
        const CounterSnapshot::Name& counter = scope.counters[i];
        const bool sum = counter.kind == CounterKind::sum;
        const std::string name =
            "nccl_ha_" + scope.name + "_" + counter.name + (sum ? "_total" : "");
        prometheus::MetricFamily& family = families[name];
        family.name = name;
        family.help = counter.help;
        family.type = sum ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
        prometheus::ClientMetric metric;
        metric.label = labels_of(snapshot, block, by_id);
        const auto value = static_cast<double>(block.values[i]);
        (sum ? metric.counter.value : metric.gauge.value) = value;
        family.metric.push_back(std::move(metric));
      }
    }
  }
  std::vector<prometheus::MetricFamily> all;
  all.reserve(families.size());
  for (auto& [name, family] : families) {
    all.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace nccl_ha::tools
