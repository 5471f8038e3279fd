#include <chrono>
#include <string>
#include <utility>

#include "tools/agent/view.h"
#include "tools/common/metrics_text.h"

namespace nccl_ha::tools {
namespace {

using Labels = MetricsText::Labels;

/// Flows beyond that would make a series each, for ever: their sums are there all the same.
constexpr size_t flows_shown_max = 256;

void add_self(const AgentView& view, MetricsText& out) {
  const WorkerCounters& worker = *view.context->counters();
  out.gauge("up_seconds", "how long the agent has run",
            std::chrono::duration<double>(view.context->now() - view.started).count());
  out.counter("turns_total", "duty cycles of the agent's thread", worker.turns);
  out.counter("overruns_total", "duty cycles longer than 20 ms", worker.overruns);
  out.gauge("longest_turn_seconds", "the longest duty cycle",
            static_cast<double>(worker.longest_turn_ns.get()) * 1e-9);
  out.counter("reloads_total", "reloads of the settings", view.reloads);
}

void add_registrations(const AgentView& view, MetricsText& out) {
  const FlowBoard& board = *view.board;
  const RegistrationPort::Counts& counts = view.registrations->counts();
  out.gauge("processes", "processes of jobs that are connected",
            static_cast<double>(view.registrations->clients()));
  out.gauge("connections", "connections that jobs have registered now",
            static_cast<double>(board.registry().connections()));
  out.gauge("slots_used", "slots of the table of hints that flows use",
            static_cast<double>(board.registry().flows()));
  out.gauge("slots_free", "slots of the table of hints that are free",
            static_cast<double>(board.registry().free_slots()));
  out.counter("connections_entered_total", "connections registered so far", board.counts().entered);
  out.counter("connections_refused_total", "connections refused", board.counts().refused);
  const char* help = "processes that the agent disconnected or lost, by reason";
  out.counter("processes_ended_total", help, counts.refused, {{"why", "refused"}});
  out.counter("processes_ended_total", help, counts.malformed, {{"why", "malformed"}});
  out.counter("processes_ended_total", help, counts.late, {{"why", "late"}});
  out.counter("processes_ended_total", help, counts.lost, {{"why", "lost"}});
}

void add_telemetry(const AgentView& view, MetricsText& out) {
  const TelemetryPort::Counts& counts = view.telemetry->counts();
  const char* help = "telemetry datagrams of switches, by result";
  for (const auto& [result, value] : std::initializer_list<std::pair<const char*, uint64_t>>{
           {"taken", counts.taken},
           {"malformed", counts.malformed},
           {"not_allowed", counts.not_allowed},
           {"forged", counts.forged},
           {"repeated", counts.repeated},
           {"out_of_time", counts.out_of_time},
           {"too_many_senders", counts.too_many}}) {
    out.counter("telemetry_datagrams_total", help, value, {{"result", result}});
  }
  if (view.telemetry->last_taken() != Instant{}) {
    out.gauge(
        "telemetry_age_seconds", "time since the last telemetry datagram that counted",
        std::chrono::duration<double>(view.context->now() - view.telemetry->last_taken()).count());
  }
  out.counter("reports_sent_total", "reports sent to the switch", counts.sent);
  out.counter("reports_failed_total", "reports to the switch that could not be sent",
              counts.send_failures);
}

void add_flows(const AgentView& view, MetricsText& out) {
  const FlowBoard& board = *view.board;
  out.counter("hints_written_total", "changes of hints", board.counts().hints);
  out.counter("levels_unmatched_total", "congestion levels for flows that no job registered",
              board.counts().unmatched);
  out.counter("backpressure_begun_total", "times that backpressure took a rail from a flow",
              board.counts().backpressure);
  size_t shown = 0;
  for (const auto& [flow, slot] : board.registry().all()) {
    if (++shown > flows_shown_max) {
      return;
    }
    const FlowBoard::FlowState& state = board.state(slot);
    Labels labels{{"source", text_of(flow.source)}, {"destination", text_of(flow.destination)}};
    out.gauge("flow_share", "part of the flow on the second rail, 0 to 1",
              state.decision.share / 1024.0, labels);
    out.gauge("flow_backpressure", "1: backpressure keeps the flow off a rail",
              state.decision.backpressure ? 1 : 0, labels);
    labels.emplace_back("rail", "");
    for (size_t rail = 0; rail < 2; ++rail) {
      labels.back().second = std::to_string(rail);
      out.gauge("flow_congestion", "filtered congestion of a rail, 0 to 255",
                state.policy.level(rail, view.context->now()), labels);
    }
  }
}

void add_rails(const AgentView& view, MetricsText& out) {
  for (const NicMeter::Rail& rail : view.nics->rails()) {
    if (!rail.reading) {
      continue;
    }
    const Labels labels{{"interface", rail.interface}};
    out.counter("rail_sent_bytes_total", "bytes that the rail's NIC sent", rail.reading->bytes_out,
                labels);
    out.counter("rail_received_bytes_total", "bytes that the rail's NIC received",
                rail.reading->bytes_in, labels);
    out.counter("rail_pauses_received_total", "pause frames that the rail's NIC received",
                rail.reading->pauses_in, labels);
    out.counter("rail_discards_total", "packets that the rail's NIC dropped for want of room",
                rail.reading->discards, labels);
    out.gauge("rail_congestion", "congestion of the host's own end of the rail, 0 to 255",
              rail.load ? rail.load->level : 0, labels);
  }
}

}  // namespace

std::string metrics_of(const AgentView& view) {
  MetricsText out("nccl_ha_agent_");
  add_self(view, out);
  add_registrations(view, out);
  add_telemetry(view, out);
  add_flows(view, out);
  add_rails(view, out);
  return out.text();
}

}  // namespace nccl_ha::tools
