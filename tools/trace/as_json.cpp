#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/common/output.h"
#include "tools/trace/critical.h"
#include "tools/trace/summary.h"
#include "tools/trace/waiting.h"

namespace nccl_ha::tools {

using nlohmann::json;

namespace {

/// How the clocks lie to each other, and what could not be read.
json clocks_of(const Timeline& timeline) {
  json all = json::array();
  const ClockTable& clocks = timeline.clocks();
  for (uint32_t i = 0; i < timeline.processes().size(); ++i) {
    all.push_back({{"process", timeline.process_name(i)},
                   {"shift_ns", clocks.shift_ns(i)},
                   {"bound_ns", clocks.bound_ns(i) < 0 ? json() : json(clocks.bound_ns(i))},
                   {"messages", clocks.messages(i)}});
  }
  return all;
}
json damages_of(const Timeline& timeline) {
  json all = json::array();
  for (const TraceSource& source : timeline.processes()) {
    for (const std::string& damage : source.damages) {
      all.push_back({{"file", source.name}, {"damage", damage}});
    }
  }
  return all;
}

}  // namespace

namespace {

json spread_json(const Spread& spread) {
  return {{"count", spread.count},
          {"p50_ns", spread.p50_ns},
          {"p99_ns", spread.p99_ns},
          {"most_ns", spread.most_ns}};
}

json calls_json(const std::vector<CallRow>& calls) {
  json all = json::array();
  for (const CallRow& row : calls) {
    all.push_back({{"process", row.process},
                   {"connection", row.connection},
                   {"requests", row.requests},
                   {"queued", spread_json(row.queued)},
                   {"unnoticed", spread_json(row.unnoticed)},
                   {"flushes", spread_json(row.flushes)},
                   {"not_taken", row.not_taken.count},
                   {"not_taken_for_ns", row.not_taken.oldest_ns},
                   {"not_noticed", row.not_noticed.count},
                   {"not_noticed_for_ns", row.not_noticed.oldest_ns}});
  }
  return all;
}

json threads_json(const std::vector<ThreadTime>& threads) {
  json all = json::array();
  for (const ThreadTime& row : threads) {
    json one{{"process", row.process},
             {"thread", row.thread},
             {"events", row.events},
             {"overwritten", row.lost},
             {"span_ns", row.span_ns}};
    if (!row.caller) {
      one["asleep_ns"] = row.asleep_ns;
      one["segments_resent"] = row.resent;
    }
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

void print_summary_json(const Timeline& timeline, const TraceSummary& summary) {
  json latencies = json::array();
  for (const LatencyRow& row : summary.latencies) {
    latencies.push_back({{"process", row.process},
                         {"connection", row.connection},
                         {"path", row.path},
                         {"bytes_from", row.size_at_least},
                         {"chunks", row.count},
                         {"p50_ns", row.p50_ns},
                         {"p90_ns", row.p90_ns},
                         {"p99_ns", row.p99_ns},
                         {"most_ns", row.most_ns}});
  }
  json paths = json::array();
  for (const PathTime& row : summary.paths) {
    paths.push_back({{"process", row.process},
                     {"connection", row.connection},
                     {"path", row.path},
                     {"in_use_ns", row.up_ns},
                     {"down_ns", row.down_ns},
                     {"failures", row.failures},
                     {"bytes", row.bytes}});
  }
  json stalls = json::array();
  for (const TraceStall& stall : summary.stalls) {
    const TraceConnection& connection = timeline.connection(stall.connection);
    stalls.push_back({{"process", timeline.process_name(connection.process)},
                      {"connection", connection.label},
                      {"begin_ns", stall.begin_ns},
                      {"took_ns", stall.end_ns - stall.begin_ns},
                      {"cause", stall.cause}});
  }
  json rounds = json::array();
  for (const RoundSummary& round : summary.rounds) {
    const TraceConnection& connection = timeline.connection(round.connection);
    rounds.push_back({{"process", timeline.process_name(connection.process)},
                      {"connection", connection.label},
                      {"path", connection.path_name(round.path)},
                      {"begin_ns", round.begin_ns},
                      {"steps", round.steps}});
  }
  print_document(document("trace summary", {{"begin_ns", timeline.begin_ns()},
                                            {"end_ns", timeline.end_ns()},
                                            {"clocks", clocks_of(timeline)},
                                            {"clocks_contradict", timeline.clocks().contradicted()},
                                            {"damages", damages_of(timeline)},
                                            {"latencies", latencies},
                                            {"paths", paths},
                                            {"threads", threads_json(summary.threads)},
                                            {"calls", calls_json(summary.calls)},
                                            {"stalls", stalls},
                                            {"rounds", rounds},
                                            {"chunks_again", summary.chunks_again},
                                            {"bytes_again", summary.bytes_again}}));
}

void print_critical_json(const Timeline& timeline, const CriticalResult& result) {
  json paths = json::array();
  for (const CriticalPath& row : result.paths) {
    paths.push_back({{"from", row.from},
                     {"to", row.to},
                     {"path", row.path},
                     {"time_ns", row.time_ns},
                     {"chunks", row.chunks},
                     {"median_ns", row.median_ns},
                     {"times_others", row.times_others},
                     {"sustained_ns", row.sustained_ns},
                     {"sustained_others", row.sustained_others},
                     {"way_others", row.way_others}});
  }
  json ranks = json::array();
  for (const CriticalRank& row : result.ranks) {
    ranks.push_back({{"process", row.process}, {"time_ns", row.time_ns}, {"gaps_ns", row.gaps_ns}});
  }
  print_document(
      document("trace critical", {{"span_ns", result.span_ns},
                                  {"steps", result.steps},
                                  {"paths", paths},
                                  {"ranks", ranks},
                                  {"clocks", clocks_of(timeline)},
                                  {"clocks_contradict", timeline.clocks().contradicted()},
                                  {"damages", damages_of(timeline)},
                                  {"unsure", result.unsure},
                                  {"verdict", result.verdict}}));
}

void print_waiting_json(const Timeline& timeline, const std::vector<WaitingRow>& rows) {
  json all = json::array();
  for (const WaitingRow& row : rows) {
    json paths = json::array();
    for (const WaitingPath& path : row.paths) {
      paths.push_back({{"path", path.name},
                       {"usable", path.usable},
                       {"writes_under_way", path.writes},
                       {"heartbeats_unanswered", path.heartbeats}});
    }
    all.push_back({{"process", row.process},
                   {"connection", row.connection},
                   {"key", fmt::format("{:016x}", row.key)},
                   {"side", row.sender ? "sender" : "receiver"},
                   {"requests", row.requests},
                   {"oldest_ns", row.oldest_ns ? json(*row.oldest_ns) : json()},
                   {"waits_for", row.waits_for},
                   {"paths", paths}});
  }
  print_document(document("trace waiting", {{"waiting", all}, {"damages", damages_of(timeline)}}));
}

}  // namespace nccl_ha::tools
