#include "tools/tune/measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/host.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// Bandwidth of a round at a size is inverse to its time: the ratio of times, the other way round.
std::vector<double> ratios_of(const json& report) {
  std::vector<double> logs;
  size_t sizes = 0;
  for (const json& row : report.at("results")) {
    const json& first = row.at("plugins").at(0).at("rounds");
    const json& second = row.at("plugins").at(1).at("rounds");
    logs.resize(std::max(logs.size(), std::min(first.size(), second.size())));
    for (size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
      const double mine = first[i].at("time_us").get<double>();
      const double other = second[i].at("time_us").get<double>();
      logs[i] += mine > 0 && other > 0 ? std::log(other / mine) : 0;
    }
    ++sizes;
  }
  for (double& value : logs) {
    value = std::exp(value / static_cast<double>(std::max<size_t>(sizes, 1)));
  }
  return logs;
}

/// Whether a file ends in the middle of a line: its writer was interrupted.
bool ends_torn(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) {
    return false;
  }
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

}  // namespace

std::string load_text(const TuneLoad& load) {
  const std::string where = load.hosts.empty() ? fmt::format("-n {}", load.ranks)
                                               : fmt::format("{}", fmt::join(load.hosts, " "));
  return fmt::format("{} {} -b {} -e {} -I {} --rounds {} --plugin {}, nccl-ha {} on {}",
                     load.operation, where, load.min_bytes, load.max_bytes, load.iterations,
                     load.rounds, load.plugin, NHA_VERSION, host_name());
}

TuneTrial measure(const TuneLoad& load, const std::string& axis, const TunedEnvironment& candidate,
                  const TunedEnvironment& against) {
  TuneTrial trial{axis, candidate, against, {}, 0, "", load_text(load)};
  std::vector<std::string> command{load.program,
                                   "perf",
                                   load.operation,
                                   "-b",
                                   load.min_bytes,
                                   "-e",
                                   load.max_bytes,
                                   "-f",
                                   "8",
                                   "-c",
                                   "0",
                                   "-I",
                                   std::to_string(load.iterations),
                                   "--plugin",
                                   load.plugin,
                                   "--against",
                                   load.plugin,
                                   "--rounds",
                                   std::to_string(load.rounds),
                                   "--json",
                                   "-"};
  if (load.hosts.empty()) {
    command.insert(command.end(), {"--ranks", std::to_string(load.ranks)});
  }
  command.insert(command.end(), load.hosts.begin(), load.hosts.end());
  for (const auto& [name, value] : candidate) {
    command.insert(command.end(), {"--env", fmt::format("{}={}", name, value)});
  }
  for (const auto& [name, value] : against) {
    command.insert(command.end(), {"--env-against", fmt::format("{}={}", name, value)});
  }
  // Who ends tune does not want its load to go on.
  const auto ended = run_process(command, "", []() -> Result<void> {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    return {};
  });
  if (!ended || ended->status != 0) {
    trial.failure = ended ? ended->err.substr(0, ended->err.find('\n')) : ended.error().message();
    trial.failure = trial.failure.empty() ? "perf failed without a word" : trial.failure;
    return trial;
  }
  try {
    const json report = json::parse(ended->out);
    trial.ratios = ratios_of(report);
    trial.busbw_gbps = report.at("average_busbw_gigabytes_per_s").at(0).get<double>();
  } catch (const json::exception& error) {
    trial.failure = fmt::format("what perf printed cannot be read: {}", error.what());
  }
  return trial;
}

std::vector<TuneTrial> load_trials(const std::string& path, const std::string& of) {
  std::vector<TuneTrial> trials;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    try {
      const json one = json::parse(line);
      TuneTrial trial{one.at("axis"),
                      one.at("candidate"),
                      one.at("against"),
                      one.at("ratios"),
                      one.at("busbw_gigabytes_per_s"),
                      one.at("failure"),
                      one.at("of")};
      if (trial.of == of && trial.failure.empty()) {
        trials.push_back(std::move(trial));
      }
    } catch (const json::exception&) {
      continue;  // it was interrupted while it wrote that
    }
  }
  return trials;
}

std::string append_trial(const std::string& path, const TuneTrial& trial) {
  const bool torn = ends_torn(path);
  std::ofstream file(path, std::ios::app);
  file << (torn ? "\n" : "")
       << json{{"axis", trial.axis},
               {"candidate", trial.candidate},
               {"against", trial.against},
               {"ratios", trial.ratios},
               {"busbw_gigabytes_per_s", trial.busbw_gbps},
               {"failure", trial.failure},
               {"of", trial.of}}
              .dump(-1, ' ', false, json::error_handler_t::replace)
       << "\n";
  file.close();
  return file ? "" : fmt::format("cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace nccl_ha::tools
