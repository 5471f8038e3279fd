#include "tools/top/rows.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace nccl_ha::tools {
namespace {

using LiveBlock = CounterSnapshot::Block;

/// A process of a reading, with its blocks by their numbers.
class RowMaker {
 public:
  RowMaker(const ProcessCounterFile& file, const ProcessCounterFile* before, double seconds)
      : file_(file), seconds_(seconds) {
    for (const LiveBlock& block : file.snapshot.blocks) {
      below_[block.parent].push_back(&block);
    }
    for (size_t i = 0; before != nullptr && i < before->snapshot.blocks.size(); ++i) {
      before_[before->snapshot.blocks[i].id] = &before->snapshot.blocks[i];
    }
    before_file_ = before;
  }

  std::vector<CounterRow> make() {
    CounterRow process;
    process.pid = file_.snapshot.pid;
    process.name = process_text(file_.snapshot);
    process.state = file_.running ? "runs" : "gone";
    rows_.push_back(process);
    for (const LiveBlock& block : file_.snapshot.blocks) {
      if (scope(block) == "worker" && !block.ended) {
        add_worker(block);
      }
    }
    for (size_t i = 1; i < rows_.size(); ++i) {
      if (rows_[i].kind == CounterRow::Kind::worker) {
        sum_up(rows_[0], rows_[i]);
      }
    }
    return std::move(rows_);
  }

 private:
  const std::string& scope(const LiveBlock& block) const {
    return file_.snapshot.scopes[block.scope].name;
  }
  uint64_t value(const LiveBlock& block, const char* counter) const {
    return value_in(file_.snapshot, block, counter);
  }
  /// How much it grew since the reading before; all of it for what is newer than that.
  uint64_t growth(const LiveBlock& block, const char* counter) const {
    const auto older = before_.find(block.id);
    const uint64_t now = value(block, counter);
    const uint64_t then =
        older == before_.end() ? 0 : value_in(before_file_->snapshot, *older->second, counter);
    return before_file_ == nullptr || now < then ? 0 : now - then;
  }
  double rate(const LiveBlock& block, const char* counter) const {
    return seconds_ <= 0 ? 0 : static_cast<double>(growth(block, counter)) / seconds_;
  }
  static void sum_up(CounterRow& whole, const CounterRow& part) {
    whole.sent += part.sent;
    whole.received += part.received;
    whole.sent_rate += part.sent_rate;
    whole.received_rate += part.received_rate;
    whole.open += part.open;
    whole.again += part.again;
    whole.again_rate += part.again_rate;
  }
  CounterRow row_of(const LiveBlock& block, CounterRow::Kind kind, size_t depth) const {
    CounterRow row;
    row.kind = kind;
    row.depth = depth;
    row.id = block.id;
    row.pid = file_.snapshot.pid;
    row.name = block.label;
    return row;
  }

  void add_worker(const LiveBlock& block) {
    CounterRow row = row_of(block, CounterRow::Kind::worker, 1);
    const uint64_t turns = before_file_ == nullptr ? value(block, "turns") : growth(block, "turns");
    const uint64_t busy =
        before_file_ == nullptr ? value(block, "busy_turns") : growth(block, "busy_turns");
    row.idle = turns == 0
                   ? 1.0
                   : 1.0 - static_cast<double>(std::min(busy, turns)) / static_cast<double>(turns);
    row.state = std::to_string(value(block, "actors")) + " actors";
    const size_t at = rows_.size();
    rows_.push_back(row);
    for (const LiveBlock* one : below_[block.id]) {
      if (scope(*one) == "connection" && !one->ended) {
        add_connection(*one, at);
      }
    }
  }

  void add_connection(const LiveBlock& block, size_t worker) {
    CounterRow row = row_of(block, CounterRow::Kind::connection, 2);
    row.sent = value(block, "bytes_sent");
    row.received = value(block, "bytes_received");
    row.sent_rate = rate(block, "bytes_sent");
    row.received_rate = rate(block, "bytes_received");
    const auto open = [&](const char* begun, const char* done) {
      const uint64_t all = value(block, begun);
      return all - std::min(all, value(block, done));
    };
    row.open = open("sends", "sends_done") + open("receives", "receives_done");
    row.again = value(block, "chunks_again");
    row.again_rate = rate(block, "chunks_again");
    const uint64_t down = value(block, "paths_down");
    const uint64_t back = value(block, "paths_back");
    row.state = down > back ? std::to_string(down - back) + " path down" : "well";
    const size_t at = rows_.size();
    rows_.push_back(row);
    add_paths(block, at);
    sum_up(rows_[worker], rows_[at]);
  }

  void add_paths(const LiveBlock& connection, size_t at) {
    uint64_t weights = 0;
    bool any_usable = false;
    for (const LiveBlock* path : below_[connection.id]) {
      if (scope(*path) == "path" && !path->ended) {
        weights += value(*path, "weight");
        any_usable = any_usable || value(*path, "usable") != 0;
      }
    }
    for (const LiveBlock* path : below_[connection.id]) {
      if (scope(*path) == "path" && !path->ended) {
        add_path(*path, weights, at);
      }
    }
    rows_[at].state = any_usable ? rows_[at].state : "no path";
  }

  void add_path(const LiveBlock& block, uint64_t weights, size_t connection) {
    CounterRow row = row_of(block, CounterRow::Kind::path, 3);
    row.sent = value(block, "bytes_sent");
    row.received = value(block, "bytes_received");
    row.sent_rate = rate(block, "bytes_sent");
    row.received_rate = rate(block, "bytes_received");
    const uint64_t writes = value(block, "writes");
    row.open = writes - std::min(writes, value(block, "writes_done") + value(block, "errors"));
    const uint64_t weight = value(block, "weight");
    row.share = weights == 0 ? -1 : static_cast<double>(weight) / static_cast<double>(weights);
    row.state = value(block, "usable") == 0 ? "down" : weight != 0 ? "in use" : "ready";
    row.state +=
        value(block, "epoch") == 0 ? "" : ", epoch " + std::to_string(value(block, "epoch"));
    for (const LiveBlock* part : below_[block.id]) {
      if (scope(*part) == "datagram_path" && !part->ended) {
        row.again += value(*part, "segments_resent");
        row.again_rate += rate(*part, "segments_resent");
      }
    }
    rows_[connection].again += row.again;
    rows_[connection].again_rate += row.again_rate;
    rows_.push_back(row);
  }

  const ProcessCounterFile& file_;
  const ProcessCounterFile* before_file_ = nullptr;
  const double seconds_;
  std::map<uint64_t, std::vector<const LiveBlock*>> below_;
  std::map<uint64_t, const LiveBlock*> before_;
  std::vector<CounterRow> rows_;
};

double sort_value(const CounterRow& row, const std::string& by) {
  return by == "sent"       ? static_cast<double>(row.sent)
         : by == "received" ? static_cast<double>(row.received)
         : by == "rate"     ? row.sent_rate + row.received_rate
         : by == "open"     ? static_cast<double>(row.open)
         : by == "again"    ? static_cast<double>(row.again)
                            : 0;
}

/// A row with what belongs to it.
struct RowTree {
  CounterRow row;
  std::vector<RowTree> below;
};

size_t take_tree(const std::vector<CounterRow>& rows, size_t at, RowTree& into) {
  into.row = rows[at];
  size_t next = at + 1;
  while (next < rows.size() && rows[next].depth > rows[at].depth) {
    into.below.emplace_back();
    next = take_tree(rows, next, into.below.back());
  }
  return next;
}

/// False: neither the row nor anything above or below it passes.
bool prune(RowTree& tree, const std::string& filter, bool above) {
  const bool own = above || tree.row.name.find(filter) != std::string::npos;
  std::erase_if(tree.below, [&](RowTree& one) { return !prune(one, filter, own); });
  return own || !tree.below.empty();
}

void put_down(std::vector<RowTree>& trees, const RowOrder& order, std::vector<CounterRow>& out) {
  std::stable_sort(trees.begin(), trees.end(), [&](const RowTree& a, const RowTree& b) {
    return sort_value(a.row, order.sort) > sort_value(b.row, order.sort);
  });
  for (RowTree& tree : trees) {
    out.push_back(std::move(tree.row));
    put_down(tree.below, order, out);
  }
}

}  // namespace

const char* to_text(CounterRow::Kind kind) {
  switch (kind) {
    case CounterRow::Kind::process:
      return "process";
    case CounterRow::Kind::worker:
      return "worker";
    case CounterRow::Kind::connection:
      return "connection";
    case CounterRow::Kind::path:
      return "path";
  }
  return "unknown";
}

std::vector<CounterRow> rows_of(const CounterReading& now, const CounterReading* before) {
  std::vector<CounterRow> rows;
  for (const ProcessCounterFile& file : now.files) {
    const ProcessCounterFile* older = nullptr;
    for (size_t i = 0; before != nullptr && i < before->files.size(); ++i) {
      const ProcessCounterFile& one = before->files[i];
      older = one.path == file.path && one.snapshot.created_ns == file.snapshot.created_ns ? &one
                                                                                           : older;
    }
    const double seconds =
        before == nullptr ? 0 : static_cast<double>(now.time_ns - before->time_ns) / 1e9;
    for (CounterRow& row : RowMaker(file, older, seconds).make()) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<CounterRow> arranged(const std::vector<CounterRow>& rows, const RowOrder& order) {
  std::vector<RowTree> trees;
  for (size_t at = 0; at < rows.size();) {
    trees.emplace_back();
    at = take_tree(rows, at, trees.back());
  }
  if (!order.filter.empty()) {
    std::erase_if(trees, [&](RowTree& one) { return !prune(one, order.filter, false); });
  }
  std::vector<CounterRow> out;
  put_down(trees, order, out);
  return out;
}

}  // namespace nccl_ha::tools
