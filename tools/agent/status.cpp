#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/host.h"
#include "runtime/base/version.h"
#include "runtime/telemetry/counter_reader.h"
#include "tools/agent/view.h"

namespace nccl_ha::tools {
namespace {

using StatusJson = nlohmann::json;

double in_seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

StatusJson flow_json(const AgentView& view, const ha::Flow& flow, uint32_t slot) {
  const FlowBoard::FlowState& state = view.board->state(slot);
  const Instant now = view.context->now();
  StatusJson json{
      {"source", text_of(flow.source)},
      {"destination", text_of(flow.destination)},
      {"source_host", state.source_host},
      {"destination_host", state.destination_host},
      {"devices", state.devices},
      {"slot", slot},
      {"connections", view.board->registry().connections_of(slot)},
      {"share", state.decision.share},
      {"backpressure", {state.policy.pressed(0), state.policy.pressed(1)}},
      {"untold", state.decision.untold},
      {"levels", {state.policy.level(0, now), state.policy.level(1, now)}},
      {"told", state.told},
      {"age_s", in_seconds(now - state.begun)},
  };
  if (const auto* samples = view.history->of(flow)) {
    json["history"] = *samples;
  }
  return json;
}

StatusJson rail_json(const NicMeter::Rail& rail) {
  StatusJson json{{"interface", rail.interface},
                  {"address", text_of(rail.address)},
                  {"speed_mbps", rail.speed_mbps},
                  {"sources", StatusJson::array()}};
  for (const auto& source : rail.sources) {
    json["sources"].push_back(source->name());
  }
  if (rail.load) {
    const double seconds = std::max(in_seconds(rail.load->interval), 1e-9);
    json["level"] = rail.load->level;
    json["used"] = rail.load->used;
    json["bytes_out_per_s"] = static_cast<double>(rail.load->bytes_out) / seconds;
    json["bytes_in_per_s"] = static_cast<double>(rail.load->bytes_in) / seconds;
    json["pauses_in"] = rail.reading->pauses_in;
    json["pauses_out"] = rail.reading->pauses_out;
    json["discards"] = rail.reading->discards;
  }
  return json;
}

StatusJson telemetry_json(const AgentView& view) {
  const TelemetryPort::Counts& counts = view.telemetry->counts();
  StatusJson json{{"port", view.telemetry->port()},
                  {"trouble", view.telemetry->trouble()},
                  {"senders", view.telemetry->senders()},
                  {"taken", counts.taken},
                  {"malformed", counts.malformed},
                  {"not_allowed", counts.not_allowed},
                  {"forged", counts.forged},
                  {"repeated", counts.repeated},
                  {"out_of_time", counts.out_of_time},
                  {"too_many_senders", counts.too_many},
                  {"sent", counts.sent},
                  {"send_failures", counts.send_failures}};
  if (view.telemetry->last_taken() != Instant{}) {
    json["age_ms"] = 1e3 * in_seconds(view.context->now() - view.telemetry->last_taken());
  }
  return json;
}

/// What the jobs' connections count themselves (runtime/telemetry/counters.def).
void add_failovers(const CounterSnapshot& snapshot, StatusJson& sums) {
  for (const CounterSnapshot::Block& block : snapshot.blocks) {
    const CounterSnapshot::Scope& scope = snapshot.scopes[block.scope];
    if (scope.name != "connection") {
      continue;
    }
    sums["connections"] = sums["connections"].get<uint64_t>() + (block.ended ? 0 : 1);
    for (size_t i = 0; i < scope.counters.size(); ++i) {
      const std::string& name = scope.counters[i].name;
      if (name == "longest_stall_ns") {
        sums[name] = std::max(sums[name].get<uint64_t>(), block.values[i]);
      } else if (sums.contains(name) && name != "connections") {
        sums[name] = sums[name].get<uint64_t>() + block.values[i];
      }
    }
  }
}

StatusJson failovers_json(const std::string& directory) {
  StatusJson sums{{"processes", 0},       {"connections", 0},   {"paths_down", 0},
                  {"paths_back", 0},      {"traffic_moves", 0}, {"chunks_again", 0},
                  {"longest_stall_ns", 0}};
  if (directory.empty()) {
    return sums;
  }
  std::set<uint32_t> seen;  // a process has a file for each copy of the plugin in it
  for (const CounterFileFound& found : find_counter_files(directory)) {
    if (!found.running || !found.good || found.pid == static_cast<uint32_t>(getpid()) ||
        !seen.insert(found.pid).second) {
      continue;
    }
    if (const auto files = read_counters_of(found.pid, directory)) {
      sums["processes"] = sums["processes"].get<uint64_t>() + 1;
      for (const ProcessCounterFile& file : *files) {
        add_failovers(file.snapshot, sums);
      }
    }
  }
  return sums;
}

}  // namespace

nlohmann::json status_of(const AgentView& view) {
  const FlowBoard& board = *view.board;
  const RegistrationPort::Counts& registrations = view.registrations->counts();
  const WorkerCounters& worker = *view.context->counters();
  StatusJson json{
      {"version", version_number()},
      {"host", host_name()},
      {"pid", getpid()},
      {"uptime_s", in_seconds(view.context->now() - view.started)},
      {"directory", view.directory},
      {"page", view.page},
      {"generation", fmt::format("{:016x}", board.generation())},
      {"draining", view.draining},
      {"reloads", view.reloads},
      {"health",
       {{"turns", worker.turns.get()},
        {"busy_turns", worker.busy_turns.get()},
        {"overruns", worker.overruns.get()},
        {"longest_turn_ms", static_cast<double>(worker.longest_turn_ns.get()) * 1e-6}}},
      {"processes", view.registrations->clients()},
      {"connections", board.registry().connections()},
      {"slots",
       {{"used", board.registry().flows()},
        {"total", board.registry().flows() + board.registry().free_slots()}}},
      {"registrations",
       {{"accepted", registrations.accepted},
        {"refused", registrations.refused},
        {"malformed", registrations.malformed},
        {"late", registrations.late},
        {"lost", registrations.lost},
        {"entered", board.counts().entered},
        {"connections_refused", board.counts().refused}}},
      {"hints",
       {{"written", board.counts().hints},
        {"levels_told", board.counts().told},
        {"levels_unmatched", board.counts().unmatched},
        {"backpressure", board.counts().backpressure}}},
      {"telemetry", telemetry_json(view)},
      {"failovers", failovers_json(view.context->config().counters_dir)},
      {"flows", StatusJson::array()},
      {"rails", StatusJson::array()},
  };
  for (const auto& [flow, slot] : board.registry().all()) {
    json["flows"].push_back(flow_json(view, flow, slot));
  }
  for (const NicMeter::Rail& rail : view.nics->rails()) {
    if (!rail.interface.empty()) {
      json["rails"].push_back(rail_json(rail));
    }
  }
  return json;
}

}  // namespace nccl_ha::tools
