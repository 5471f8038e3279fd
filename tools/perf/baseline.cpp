#include "tools/perf/baseline.h"

#include <errno.h>
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/common/rank_sum.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

constexpr double significant = 0.05;

const char* unit_of_rounds(const PerfOptions& options) {
  return options.op == OpKind::latency ? "p50_us" : "time_us";
}

const char* verdict(const Compared& one) {
  if (!one.enough_rounds) {
    return "too few rounds to tell";
  }
  if (one.p > significant) {
    return "no difference shown";
  }
  return one.ratio < 1 ? "faster" : "slower";
}

}  // namespace

Result<Baseline> Baseline::read(const std::string& path, const PerfOptions& options,
                                uint32_t ranks) {
  std::ifstream file(path);
  if (!file) {
    return fail(Errc::invalid_argument, fmt::format("--baseline {}: cannot be opened", path),
                errno);
  }
  const json document = json::parse(file, nullptr, false);
  if (document.is_discarded()) {
    return fail(
        Errc::invalid_argument,
        fmt::format("--baseline {}: no JSON; take a file that `nccl-ha perf --json` wrote", path));
  }
  return of(document, path, options, ranks);
}

Result<Baseline> Baseline::of(const json& document, const std::string& path,
                              const PerfOptions& options, uint32_t ranks) {
  const auto refuse = [&](const std::string& why) {
    return fail(Errc::invalid_argument, fmt::format("--baseline {}: {}", path, why));
  };
  Baseline out;
  try {
    const std::string operation = document.at("operation");
    if (operation != to_text(options.op)) {
      return refuse(fmt::format("it is of {}, not of {}", operation, to_text(options.op)));
    }
    if (document.at("ranks").get<uint32_t>() != ranks) {
      return refuse(
          fmt::format("it is of {} ranks, not of {}", document.at("ranks").get<uint32_t>(), ranks));
    }
    for (const json& row : document.at("results")) {
      std::vector<double>& rounds = out.rounds_us_[row.at("bytes").get<uint64_t>()];
      for (const json& round : row.at("plugins").at(0).at("rounds")) {
        rounds.push_back(round.at(unit_of_rounds(options)));
      }
      if (rounds.empty()) {
        return refuse("a size has no rounds");
      }
    }
    out.title_ = fmt::format("{} ({} of {})", path, document.value("version", "?"),
                             document.value("date", "?"));
  } catch (const json::exception& error) {
    return refuse(fmt::format("it is not what `nccl-ha perf --json` writes: {}", error.what()));
  }
  return out;
}

std::vector<Compared> Baseline::compare(const PerfOptions& options,
                                        const std::vector<Row>& rows) const {
  std::vector<Compared> all;
  for (const Row& row : rows) {
    const auto then = rounds_us_.find(row.bytes);
    if (then == rounds_us_.end()) {
      continue;
    }
    std::vector<double> now;
    for (const Round& round : row.cells.front().rounds) {
      now.push_back(options.op == OpKind::latency ? round.p50_us : round.time_s * 1e6);
    }
    Compared one;
    one.bytes = row.bytes;
    one.then_us = median(then->second);
    one.now_us = median(now);
    one.ratio = one.then_us > 0 ? one.now_us / one.then_us : 0;
    one.p = rank_sum_p(now, then->second);
    one.enough_rounds = std::min(now.size(), then->second.size()) >= rank_sum_least;
    all.push_back(one);
  }
  return all;
}

std::string compared_text(const Baseline& baseline, const std::vector<Compared>& all) {
  std::string text = fmt::format("#\n# Against {}:\n", baseline.title());
  if (all.empty()) {
    return text + "# no size is in both\n";
  }
  text +=
      fmt::format("# {:>11} {:>10} {:>10} {:>8} {:>7}\n", "size", "now", "then", "now/then", "p");
  for (const Compared& one : all) {
    text += fmt::format("# {:>11} {:>10.2f} {:>10.2f} {:>8.3f} {:>7.3f} {}\n", one.bytes,
                        one.now_us, one.then_us, one.ratio, one.p, verdict(one));
  }
  return text + fmt::format(
                    "# Times in us, medians of rounds; p by the rank-sum test over the rounds, a\n"
                    "# difference below {}; each side needs {} rounds or more\n",
                    significant, rank_sum_least);
}

json compared_json(const Baseline& baseline, const std::vector<Compared>& all) {
  json out{{"of", baseline.title()}, {"sizes", json::array()}};
  for (const Compared& one : all) {
    out["sizes"].push_back({{"bytes", one.bytes},
                            {"now_us", one.now_us},
                            {"then_us", one.then_us},
                            {"ratio", one.ratio},
                            {"p", one.p},
                            {"verdict", verdict(one)}});
  }
  return out;
}

}  // namespace nccl_ha::tools
