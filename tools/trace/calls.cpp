#include "tools/trace/calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tools/trace/summary.h"

namespace nccl_ha::tools {
namespace {

/// A worker's time is that of its turn, which may have begun before NCCL's call.
int64_t since(int64_t begin, int64_t end) { return std::max<int64_t>(end - begin, 0); }

class CallBook {
 public:
  explicit CallBook(const Timeline& timeline) : timeline_(timeline) {
    for (const TraceMoment& moment : timeline.moments()) {
      began_.try_emplace({moment.process, moment.thread}, moment.time_ns);
    }
  }

  /// `taken`, `ended`: what the worker did with it.
  void take(int32_t connection, int64_t asked, int64_t taken, int64_t ended, int64_t noticed) {
    if (connection < 0 || (asked == unseen && noticed == unseen)) {
      return;
    }
    Side& side = sides_[connection];
    side.row.requests += asked != unseen ? 1 : 0;
    if (asked != unseen && taken != unseen) {
      side.queued.push_back(since(asked, taken));
    }
    if (ended != unseen && noticed != unseen) {
      side.unnoticed.push_back(since(ended, noticed));
    }
    if (asked == unseen || noticed != unseen) {
      return;
    }
    if (ended != unseen) {
      wait(connection, side.row.not_noticed, ended);
    } else if (taken == unseen && covers(connection, asked)) {
      wait(connection, side.row.not_taken, asked);
    }
  }

  void take_flushes() {
    std::map<std::pair<int32_t, uint64_t>, int64_t> open;
    for (const TraceMoment& moment : timeline_.moments()) {
      if (!moment.event || !is_of_caller(*moment.event) || moment.connection < 0 ||
          timeline_.value(moment, "what") != static_cast<uint64_t>(TraceRequest::flush)) {
        continue;
      }
      const std::pair key(moment.connection, timeline_.value(moment, "group").value_or(0));
      if (moment.event == TraceEvent::request_asked) {
        open[key] = moment.time_ns;
      } else if (const auto asked = open.find(key); asked != open.end()) {
        sides_[moment.connection].flushes.push_back(since(asked->second, moment.time_ns));
        open.erase(asked);
      }
    }
  }

  std::vector<CallRow> rows() {
    std::vector<CallRow> all;
    for (auto& [index, side] : sides_) {
      const TraceConnection& connection = timeline_.connection(index);
      side.row.process = timeline_.process_name(connection.process);
      side.row.connection = connection.label;
      side.row.queued = spread_of(std::move(side.queued));
      side.row.unnoticed = spread_of(std::move(side.unnoticed));
      side.row.flushes = spread_of(std::move(side.flushes));
      all.push_back(std::move(side.row));
    }
    return all;
  }

 private:
  struct Side {
    CallRow row;
    std::vector<int64_t> queued;
    std::vector<int64_t> unnoticed;
    std::vector<int64_t> flushes;
  };

  /// What the connection's worker did from then on was not overwritten.
  bool covers(int32_t connection, int64_t time) const {
    const TraceConnection& one = timeline_.connection(connection);
    const auto began = began_.find({one.process, one.worker});
    return began != began_.end() && began->second <= time;
  }
  void wait(int32_t connection, Waiting& waiting, int64_t from) const {
    ++waiting.count;
    const int64_t end = timeline_.end_ns(timeline_.connection(connection).process);
    waiting.oldest_ns = std::max(waiting.oldest_ns, since(from, end));
  }

  const Timeline& timeline_;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> began_;  ///< of process and thread
  std::map<int32_t, Side> sides_;
};

void print_waiting(const CallRow& row, const Waiting& waiting, const char* what) {
  if (waiting.count != 0) {
    fmt::print("  {} {}: {} {}, the oldest for {}\n", row.process, row.connection, waiting.count,
               what, duration_text(waiting.oldest_ns));
  }
}

}  // namespace

Spread spread_of(std::vector<int64_t> durations) {
  std::sort(durations.begin(), durations.end());
  return {durations.size(), nearest_rank(durations, 0.5), nearest_rank(durations, 0.99),
          durations.empty() ? 0 : durations.back()};
}

std::vector<CallRow> calls_of(const Timeline& timeline, const std::vector<TraceMessage>& messages) {
  CallBook book(timeline);
  for (const TraceMessage& one : messages) {
    book.take(one.sender, one.asked_ns, one.begun_ns, one.sent_ns, one.noticed_ns);
    book.take(one.receiver, one.receive_asked_ns, one.announced_ns, one.received_ns,
              one.receive_noticed_ns);
  }
  book.take_flushes();
  return book.rows();
}

void print_calls(const std::vector<CallRow>& calls, const NameWidths& widths) {
  if (calls.empty()) {
    return;
  }
  const auto line = [&widths](const auto& process, const auto& connection, const auto&... columns) {
    fmt::print("  {:<{}} {:<{}} {:>8} {:>10} {:>10} {:>10} {:>11} {:>10} {:>10}\n", process,
               widths.process, connection, widths.connection, columns...);
  };
  fmt::print(
      "\nNCCL's requests: queued until a worker took them up (receives: announced them), and done "
      "until NCCL noticed\n");
  line("process", "connection", "requests", "queued p50", "p99", "most", "noticed p50", "p99",
       "most");
  for (const CallRow& row : calls) {
    line(row.process, row.connection, row.requests, duration_text(row.queued.p50_ns),
         duration_text(row.queued.p99_ns), duration_text(row.queued.most_ns),
         duration_text(row.unnoticed.p50_ns), duration_text(row.unnoticed.p99_ns),
         duration_text(row.unnoticed.most_ns));
  }
  for (const CallRow& row : calls) {
    print_waiting(row, row.not_taken, "asked for and not taken up");
    print_waiting(row, row.not_noticed, "done, which NCCL has not noticed");
    if (row.flushes.count != 0) {
      fmt::print("  {} {}: {} flushes, p50 {}, p99 {}, most {}\n", row.process, row.connection,
                 row.flushes.count, duration_text(row.flushes.p50_ns),
                 duration_text(row.flushes.p99_ns), duration_text(row.flushes.most_ns));
    }
  }
}

}  // namespace nccl_ha::tools
