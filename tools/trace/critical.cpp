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

/// What chunks in a row take where they take most: the largest median of `run` that follow each
/// other.  A processor that was busy elsewhere holds up a few at a time, a slow path all of them.
int64_t sustained(std::vector<std::pair<int64_t, int64_t>> posted_and_took, size_t run) {
  std::sort(posted_and_took.begin(), posted_and_took.end());
  int64_t most = 0;
  std::vector<int64_t> some(run);
  for (size_t i = 0; i + run <= posted_and_took.size(); i += run / 2) {
    for (size_t k = 0; k < run; ++k) {
      some[k] = posted_and_took[i + k].second;
    }
    const auto middle = some.begin() + static_cast<ptrdiff_t>(run / 2);
    std::nth_element(some.begin(), middle, some.end());
    most = std::max(most, *middle);
  }
  return most;
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
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].receiver >= 0) {
        groups_[{messages_[i].receiver, messages_[i].group}].push_back(i);
      }
    }
    all_done_ = done_;
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
    fill(result, limits, now, last.second);
    return result;
  }

 private:
  /// Of each process: when its receives were done, and which they are.
  using Done = std::map<uint32_t, std::vector<std::pair<int64_t, size_t>>>;

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
  static int64_t last_done_before(const Done& done, uint32_t process, int64_t now) {
    const auto found = done.find(process);
    if (found == done.end()) {
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

  static const TraceChunk* last_chunk(const TraceMessage& message) {
    const TraceChunk* last = nullptr;
    for (const TraceChunk& chunk : message.chunks) {
      if (chunk.arrived_ns != unseen && (last == nullptr || chunk.arrived_ns > last->arrived_ns)) {
        last = &chunk;
      }
    }
    return last;
  }

  /// The buffers of a group are done together: the one counts whose last chunk came last.
  size_t last_buffer(size_t index) const {
    size_t latest = index;
    int64_t arrived = unseen;
    const auto group = groups_.find({messages_[index].receiver, messages_[index].group});
    if (group == groups_.end()) {
      return index;
    }
    for (const size_t one : group->second) {
      const TraceChunk* last = last_chunk(messages_[one]);
      if (last != nullptr && last->arrived_ns > arrived) {
        latest = one;
        arrived = last->arrived_ns;
      }
    }
    return latest;
  }

  /// Of each process: between what it had to have and its sends, of those begun from `begin` on.
  std::map<uint32_t, int64_t> gaps_between(int64_t begin, int64_t end) const {
    std::map<uint32_t, int64_t> gaps;
    for (const TraceMessage& message : messages_) {
      if (message.sender < 0 || message.begun_ns == unseen || message.begun_ns < begin ||
          message.begun_ns > end) {
        continue;
      }
      const uint32_t sender = timeline_.connection(message.sender).process;
      int64_t had = last_done_before(all_done_, sender, message.begun_ns);
      if (message.heard_ns != unseen && message.heard_ns <= message.begun_ns) {
        had = std::max(had, message.heard_ns);
      }
      if (had != unseen) {
        gaps[sender] += message.begun_ns - had;
      }
    }
    return gaps;
  }

  /// Why the way says nothing; empty: it does.
  std::string unsure_because(const CriticalResult& result) const {
    const auto steps = static_cast<int64_t>(std::max<size_t>(result.steps, 1));
    for (const auto& [process, time] : ranks_) {
      const int64_t bound = timeline_.clocks().bound_ns(process);
      if (bound < 0) {
        return fmt::format("nothing can be said: how the clock of {} lies to the others is unknown",
                           timeline_.process_name(process));
      }
      if (bound > result.span_ns / steps) {
        return fmt::format(
            "nothing can be said: the clock of {} is known to {}, and a step takes {}",
            timeline_.process_name(process), duration_text(bound),
            duration_text(result.span_ns / steps));
      }
    }
    return "";
  }

  /// From a message's completion to what its sender had to have before; false: that is not known.
  bool step_over(size_t index, uint32_t& process, int64_t& now) {
    const TraceMessage& whole = messages_[index];
    const TraceMessage& message = messages_[last_buffer(index)];
    const TraceChunk* last = last_chunk(message);
    if (last == nullptr || message.sender < 0 || last->posted_ns == unseen ||
        message.begun_ns == unseen) {
      return false;
    }
    // A chunk that waits for room waits for its path.
    paths_[key_of(message, last->path)] +=
        std::max<int64_t>(whole.received_ns - message.begun_ns, 0);
    const uint32_t sender = timeline_.connection(message.sender).process;
    const int64_t had = last_done_before(done_, sender, message.begun_ns);
    if (whole.announced_ns != unseen && whole.heard_ns != unseen &&
        whole.heard_ns <= message.begun_ns && whole.heard_ns > had) {
      // The sender was ready, and waited for the receiver to say where it goes.
      charge_rank(sender, message.begun_ns - whole.heard_ns);
      if (whole.announced_ns >= now) {
        return false;
      }
      now = whole.announced_ns;
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

  void fill(CriticalResult& result, const CriticalLimits& limits, int64_t begin, int64_t end) {
    std::map<PathKey, std::vector<std::pair<int64_t, int64_t>>> times;  // posted, and what it took
    for (const TraceMessage& message : messages_) {
      for (const TraceChunk& chunk : message.chunks) {
        if (message.sender >= 0 && chunk.posted_ns != unseen && chunk.acked_ns != unseen) {
          times[key_of(message, chunk.path)].emplace_back(chunk.posted_ns,
                                                          chunk.acked_ns - chunk.posted_ns);
        }
      }
    }
    for (const auto& [key, chunks] : times) {
      std::vector<int64_t> all;
      for (const auto& [posted, took] : chunks) {
        all.push_back(took);
      }
      std::sort(all.begin(), all.end());
      const auto& [process, to, path] = key;
      CriticalPath row;
      row.from = timeline_.process_name(process);
      row.to = to;
      row.path = path;
      row.chunks = all.size();
      row.median_ns = time_weighted_median(all);
      row.sustained_ns = sustained(chunks, limits.chunks_min);
      const auto charged = paths_.find(key);
      row.time_ns = charged == paths_.end() ? 0 : charged->second;
      result.paths.push_back(std::move(row));
    }
    for (CriticalPath& row : result.paths) {
      row.times_others = beside_others(result.paths, row, limits, &CriticalPath::median_ns);
      row.sustained_others = beside_others(result.paths, row, limits, &CriticalPath::sustained_ns);
      row.way_others = beside_others(result.paths, row, limits, &CriticalPath::time_ns);
    }
    std::stable_sort(
        result.paths.begin(), result.paths.end(),
        [](const CriticalPath& a, const CriticalPath& b) { return a.time_ns > b.time_ns; });
    result.unsure = paths_.empty() ? "" : unsure_because(result);
    auto gaps = gaps_between(begin, end);
    for (const auto& [process, gap] : gaps) {
      ranks_.try_emplace(process, 0);
    }
    for (const auto& [process, time] : ranks_) {
      result.ranks.push_back({timeline_.process_name(process), time, gaps[process]});
    }
    std::stable_sort(
        result.ranks.begin(), result.ranks.end(),
        [](const CriticalRank& a, const CriticalRank& b) { return a.time_ns > b.time_ns; });
    if (result.unsure.empty()) {
      judge(result, limits);
    }
  }

  /// A value of a path by the median of the others', of those that say something; 0 of none.
  static double beside_others(const std::vector<CriticalPath>& all, const CriticalPath& row,
                              const CriticalLimits& limits, int64_t CriticalPath::*value) {
    std::vector<int64_t> others;
    for (const CriticalPath& other : all) {
      if (&other != &row && other.chunks >= limits.chunks_min && other.*value > 0) {
        others.push_back(other.*value);
      }
    }
    std::sort(others.begin(), others.end());
    return others.empty()
               ? 0
               : static_cast<double>(row.*value) / static_cast<double>(nearest_rank(others, 0.5));
  }

  static void judge(CriticalResult& result, const CriticalLimits& limits) {
    const auto span = static_cast<double>(std::max<int64_t>(result.span_ns, 1));
    const CriticalPath* worst = nullptr;
    for (const CriticalPath& row : result.paths) {
      const double share = static_cast<double>(row.time_ns) / span;
      const bool more = row.way_others == 0 || row.way_others >= limits.factor;
      if (share >= limits.share && more && row.times_others >= limits.slower &&
          row.sustained_others >= limits.slower && row.chunks >= limits.chunks_min &&
          (worst == nullptr || row.time_ns > worst->time_ns)) {
        worst = &row;
      }
    }
    if (worst != nullptr) {
      const std::string more =
          worst->way_others == 0
              ? "no other path has a part of it"
              : fmt::format("{:.1f} times as much as other paths", worst->way_others);
      result.verdict = fmt::format(
          "{} of {} to {} held it up: {:.0f}% of the way, {}; its chunks take {:.1f} times as long",
          worst->path, worst->from, worst->to, 100 * static_cast<double>(worst->time_ns) / span,
          more, worst->times_others);
      return;
    }
    if (result.ranks.size() < 2) {
      return;
    }
    const CriticalRank& first = result.ranks[0];
    const double share = static_cast<double>(first.time_ns) / span;
    const auto next = static_cast<double>(std::max<int64_t>(result.ranks[1].time_ns, 1));
    // Where all compute alike, the way may go over one of them alone.
    std::vector<int64_t> gaps;
    for (size_t i = 1; i < result.ranks.size(); ++i) {
      gaps.push_back(result.ranks[i].gaps_ns);
    }
    std::sort(gaps.begin(), gaps.end());
    const auto others = static_cast<double>(std::max<int64_t>(nearest_rank(gaps, 0.5), 1));
    if (share >= limits.rank_share &&
        static_cast<double>(first.time_ns) / next >= limits.rank_factor &&
        static_cast<double>(first.gaps_ns) / others >= limits.rank_factor) {
      result.verdict = fmt::format(
          "{} itself held it up: for {:.0f}% of the way it had all it needed and did nothing "
          "with it",
          first.process, 100 * share);
    }
  }

  const Timeline& timeline_;
  const std::vector<TraceMessage> messages_;
  Done done_;      ///< receives that were not walked over
  Done all_done_;  ///< all of them
  std::map<std::pair<int32_t, uint64_t>, std::vector<size_t>> groups_;  ///< by receiver and group
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
  fmt::print("\n{}\n", !result.unsure.empty()   ? result.unsure
                       : result.verdict.empty() ? "nothing stands out"
                                                : result.verdict);
}

}  // namespace nccl_ha::tools
