#include "tools/trace/critical.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tools/trace/summary.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t rows_shown = 8;
/// Bounds the walk; a ring holds fewer events.
constexpr size_t steps_max = 1'000'000;

/// How long the chunk takes that is under way at a random moment: what was slow for a while weighs
/// as much as its time, however many were fast before.
int64_t time_weighted_median(const std::vector<int64_t>& sorted) {
  int64_t sum = 0;
  for (const int64_t time : sorted) {
    sum += std::max<int64_t>(time, 0);
  }
  int64_t half = sum / 2;
  for (const int64_t time : sorted) {
    half -= std::max<int64_t>(time, 0);
    if (half <= 0) {
      return time;
    }
  }
  return 0;
}

/// Whom a step is charged to: a path of a sender.
using PathKey = std::tuple<uint32_t, std::string, std::string>;  // process, peer, path

class CriticalWalk {
 public:
  explicit CriticalWalk(const Timeline& timeline)
      : timeline_(timeline), messages_(messages_of(timeline)) {
    for (size_t i = 0; i < messages_.size(); ++i) {
      const TraceMessage& message = messages_[i];
      if (message.receiver >= 0 && message.received_ns != unseen) {
        done_[timeline_.connection(message.receiver).process].emplace_back(message.received_ns, i);
      }
    }
    for (auto& [process, all] : done_) {
      std::sort(all.begin(), all.end());
    }
  }

  CriticalResult walk(const CriticalLimits& limits) {
    CriticalResult result;
    std::pair<uint32_t, int64_t> last = last_completion();
    uint32_t process = last.first;
    int64_t now = last.second;
    while (now != unseen && result.steps < steps_max) {
      ++result.steps;
      const auto message = completed_before(process, now);
      if (!message) {
        break;
      }
      charge_rank(process, now - messages_[*message].received_ns);
      if (step_over(*message, process, now)) {
        continue;
      }
      // What came before is not known, or was stamped late: the process itself goes further back.
      now = messages_[*message].received_ns;
      if (paths_.empty()) {
        // Dumps are not taken in the same moment: the way begins where all of them have something.
        ranks_.clear();
        last.second = now;
      }
    }
    result.span_ns = now == unseen || paths_.empty() ? 0 : last.second - now;
    fill(result, limits);
    return result;
  }

 private:
  std::pair<uint32_t, int64_t> last_completion() const {
    std::map<uint32_t, int64_t> ends;
    for (const TraceMoment& moment : timeline_.moments()) {
      ends[moment.process] = moment.time_ns;
    }
    int64_t until = INT64_MAX;
    for (const auto& [process, end] : ends) {
      until = std::min(until, end);
    }
    std::pair<uint32_t, int64_t> last{0, unseen};
    for (const auto& [process, all] : done_) {
      const auto at = std::upper_bound(all.begin(), all.end(), std::pair(until, SIZE_MAX));
      if (at != all.begin() && std::prev(at)->first > last.second) {
        last = {process, std::prev(at)->first};
      }
    }
    return last;
  }

  /// The latest receive that a process had by then, and that was not walked over before.
  std::optional<size_t> completed_before(uint32_t process, int64_t now) {
    auto& all = done_[process];
    while (!all.empty() && all.back().first > now) {
      all.pop_back();
    }
    if (all.empty()) {
      return std::nullopt;
    }
    const size_t message = all.back().second;
    all.pop_back();
    return message;
  }

  /// Of a process: when the latest receive before a moment was done.
  int64_t last_done_before(uint32_t process, int64_t now) const {
    const auto found = done_.find(process);
    if (found == done_.end()) {
      return unseen;
    }
    const auto at =
        std::upper_bound(found->second.begin(), found->second.end(), std::pair(now, SIZE_MAX));
    return at == found->second.begin() ? unseen : std::prev(at)->first;
  }

  PathKey key_of(const TraceMessage& message, uint32_t path) const {
    const TraceConnection& sender = timeline_.connection(message.sender);
    const std::string peer =
        message.receiver < 0
            ? sender.label
            : timeline_.process_name(timeline_.connection(message.receiver).process);
    return {sender.process, peer, sender.path_name(path)};
  }

  void charge_rank(uint32_t process, int64_t time) {
    ranks_[process] += std::max<int64_t>(time, 0);
  }

  /// From a message's completion to what its sender had to have before; false: that is not known.
  bool step_over(size_t index, uint32_t& process, int64_t& now) {
    const TraceMessage& message = messages_[index];
    const TraceChunk* last = nullptr;
    for (const TraceChunk& chunk : message.chunks) {
      if (chunk.arrived_ns != unseen && (last == nullptr || chunk.arrived_ns > last->arrived_ns)) {
        last = &chunk;
      }
    }
    if (last == nullptr || message.sender < 0 || last->posted_ns == unseen ||
        message.begun_ns == unseen) {
      return false;
    }
    // A chunk that waits for room waits for its path.
    paths_[key_of(message, last->path)] +=
        std::max<int64_t>(message.received_ns - message.begun_ns, 0);
    const uint32_t sender = timeline_.connection(message.sender).process;
    const int64_t had = last_done_before(sender, message.begun_ns);
    if (message.announced_ns != unseen && message.heard_ns != unseen &&
        message.heard_ns <= message.begun_ns && message.heard_ns > had) {
      // The sender was ready, and waited for the receiver to say where it goes.
      charge_rank(sender, message.begun_ns - message.heard_ns);
      if (message.announced_ns >= now) {
        return false;
      }
      now = message.announced_ns;
      process = timeline_.connection(message.receiver).process;
      return true;
    }
    if (message.begun_ns >= now) {
      return false;
    }
    now = message.begun_ns;
    process = sender;
    return true;
  }

  void fill(CriticalResult& result, const CriticalLimits& limits) {
    std::map<PathKey, std::vector<int64_t>> times;
    for (const TraceMessage& message : messages_) {
      for (const TraceChunk& chunk : message.chunks) {
        if (message.sender >= 0 && chunk.posted_ns != unseen && chunk.acked_ns != unseen) {
          times[key_of(message, chunk.path)].push_back(chunk.acked_ns - chunk.posted_ns);
        }
      }
    }
    for (auto& [key, all] : times) {
      std::sort(all.begin(), all.end());
      const auto& [process, to, path] = key;
      CriticalPath row{timeline_.process_name(process), to, path, 0, all.size(),
                       time_weighted_median(all),       0};
      const auto charged = paths_.find(key);
      row.time_ns = charged == paths_.end() ? 0 : charged->second;
      result.paths.push_back(std::move(row));
    }
    for (CriticalPath& row : result.paths) {
      row.times_others = beside_others(result.paths, row, limits, &CriticalPath::median_ns);
      row.way_others = beside_others(result.paths, row, limits, &CriticalPath::time_ns);
    }
    std::stable_sort(
        result.paths.begin(), result.paths.end(),
        [](const CriticalPath& a, const CriticalPath& b) { return a.time_ns > b.time_ns; });
    for (const auto& [process, time] : ranks_) {
      result.ranks.push_back({timeline_.process_name(process), time});
    }
    std::stable_sort(
        result.ranks.begin(), result.ranks.end(),
        [](const CriticalRank& a, const CriticalRank& b) { return a.time_ns > b.time_ns; });
    judge(result, limits);
  }

  /// A value of a path by the median of the others', those that say something.
  static double beside_others(const std::vector<CriticalPath>& all, const CriticalPath& row,
                              const CriticalLimits& limits, int64_t CriticalPath::*value) {
    std::vector<int64_t> others;
    for (const CriticalPath& other : all) {
      if (&other != &row && other.chunks >= limits.chunks_min) {
        others.push_back(other.*value);
      }
    }
    std::sort(others.begin(), others.end());
    return others.empty()
               ? 0
               : static_cast<double>(row.*value) /
                     static_cast<double>(std::max<int64_t>(nearest_rank(others, 0.5), 1));
  }

  static void judge(CriticalResult& result, const CriticalLimits& limits) {
    const auto span = static_cast<double>(std::max<int64_t>(result.span_ns, 1));
    const CriticalPath* worst = nullptr;
    for (const CriticalPath& row : result.paths) {
      const double share = static_cast<double>(row.time_ns) / span;
      if (share >= limits.share && row.way_others >= limits.factor && row.times_others > 1 &&
          row.chunks >= limits.chunks_min && (worst == nullptr || row.time_ns > worst->time_ns)) {
        worst = &row;
      }
    }
    if (worst != nullptr) {
      result.verdict = fmt::format(
          "{} of {} to {} held it up: {:.0f}% of the way, {:.1f} times as much as other paths; its "
          "chunks take {:.1f} times as long",
          worst->path, worst->from, worst->to, 100 * static_cast<double>(worst->time_ns) / span,
          worst->way_others, worst->times_others);
      return;
    }
    if (result.ranks.size() < 2) {
      return;
    }
    const CriticalRank& first = result.ranks[0];
    const double share = static_cast<double>(first.time_ns) / span;
    const auto next = static_cast<double>(std::max<int64_t>(result.ranks[1].time_ns, 1));
    if (share >= limits.rank_share &&
        static_cast<double>(first.time_ns) / next >= limits.rank_factor) {
      result.verdict = fmt::format(
          "{} itself held it up: for {:.0f}% of the way it had all it needed and did nothing "
          "with it",
          first.process, 100 * share);
    }
  }

  const Timeline& timeline_;
  const std::vector<TraceMessage> messages_;
  std::map<uint32_t, std::vector<std::pair<int64_t, size_t>>> done_;
  std::map<PathKey, int64_t> paths_;
  std::map<uint32_t, int64_t> ranks_;
};

}  // namespace

CriticalResult critical_of(const Timeline& timeline, const CriticalLimits& limits) {
  return CriticalWalk(timeline).walk(limits);
}

void print_critical(const CriticalResult& result) {
  const auto span = static_cast<double>(std::max<int64_t>(result.span_ns, 1));
  fmt::print("the way back from the last completion: {} in {} steps\n\n  {:>6} {:>10}  path\n",
             duration_text(result.span_ns), result.steps, "part", "time");
  for (size_t i = 0; i < result.paths.size() && i < rows_shown; ++i) {
    const CriticalPath& row = result.paths[i];
    fmt::print("  {:>5.1f}% {:>10}  {} to {}, {}: {} chunks of {} each, {:.1f} times the others\n",
               100 * static_cast<double>(row.time_ns) / span, duration_text(row.time_ns), row.from,
               row.to, row.path, row.chunks, duration_text(row.median_ns), row.times_others);
  }
  fmt::print("\n  {:>6} {:>10}  rank, between what it had and what it did then\n", "part", "time");
  for (size_t i = 0; i < result.ranks.size() && i < rows_shown; ++i) {
    const CriticalRank& row = result.ranks[i];
    fmt::print("  {:>5.1f}% {:>10}  {}\n", 100 * static_cast<double>(row.time_ns) / span,
               duration_text(row.time_ns), row.process);
  }
  fmt::print("\n{}\n", result.verdict.empty() ? "nothing stands out" : result.verdict);
}

}  // namespace nccl_ha::tools
