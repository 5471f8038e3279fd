#include <map>
#include <string>
#include <utility>

#include "tools/common/metrics_text.h"
#include "tools/top/stat.h"

namespace nccl_ha::tools {
namespace {

/// Labels of a block: whose it is, and what it is below.
MetricsText::Labels labels_of(const CounterSnapshot& snapshot, const CounterSnapshot::Block& block,
                              const std::map<uint64_t, const CounterSnapshot::Block*>& by_id) {
  MetricsText::Labels labels{{"host", snapshot.host},
                             {"pid", std::to_string(snapshot.pid)},
                             {"instance", std::to_string(snapshot.instance)},
                             {"program", snapshot.program},
                             {"id", std::to_string(block.id)}};
  const CounterSnapshot::Block* at = &block;
  while (at != nullptr) {
    labels.emplace_back(snapshot.scopes[at->scope].name, at->label);
    const auto above = by_id.find(at->parent);
    // Parents are older: a damaged file does not go round.
    at = above == by_id.end() || above->second->id >= at->id ? nullptr : above->second;
  }
  return labels;
}

}  // namespace

std::string stat_prometheus(const CounterReading& reading) {
  MetricsText out("nccl_ha_");
  for (const ProcessCounterFile& file : reading.files) {
    const CounterSnapshot& snapshot = file.snapshot;
    std::map<uint64_t, const CounterSnapshot::Block*> by_id;
    for (const auto& block : snapshot.blocks) {
      by_id[block.id] = &block;
    }
    for (const auto& block : snapshot.blocks) {
      if (block.ended) {
        continue;
      }
      const CounterSnapshot::Scope& scope = snapshot.scopes[block.scope];
      const MetricsText::Labels labels = labels_of(snapshot, block, by_id);
      for (size_t i = 0; i < block.values.size(); ++i) {
        const CounterSnapshot::Name& counter = scope.counters[i];
        const std::string name = scope.name + "_" + counter.name;
        if (counter.kind == CounterKind::sum) {
          out.counter(name + "_total", counter.help, block.values[i], labels);
        } else {
          out.gauge(name, counter.help, static_cast<double>(block.values[i]), labels);
        }
      }
    }
  }
  return out.text();
}

}  // namespace nccl_ha::tools
