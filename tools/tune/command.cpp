#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/cpu.h"
#include "runtime/base/whole_file.h"
#include "tools/commands.h"
#include "tools/common/chart.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/common/remote_ranks.h"
#include "tools/tune/measure.h"

namespace nccl_ha::tools {
namespace {

constexpr Refusal refuse_tune{"nccl-ha tune", 2};

struct TuneOptions {
  TuneLoad load;
  RemoteOptions remote;
  std::string state = "nccl-ha-tune.jsonl";
  std::string plot;
  std::vector<std::string> axes;
  bool rdma = false;
  bool anew = false;
};

std::vector<std::string> words_for_perf(const RemoteOptions& remote) {
  std::vector<std::string> words = remote.list.empty()
                                       ? std::vector<std::string>{"--hosts-file", remote.file}
                                       : std::vector<std::string>{"--hosts", remote.list};
  words.insert(words.end(), {"--ssh", remote.shell, "--port", std::to_string(remote.port)});
  if (!remote.program.empty()) {
    words.insert(words.end(), {"--program", remote.program});
  }
  return words;
}

/// What on_interrupt() says; a signal's handler may only write.
std::string interrupted_text;

void on_interrupt(int number) {
  static_cast<void>(!write(STDERR_FILENO, interrupted_text.data(), interrupted_text.size()));
  signal(number, SIG_DFL);
  raise(number);
}

/// Goes through the plan; what a file has already is not measured again.
class Tuner {
 public:
  explicit Tuner(const TuneOptions& options)
      : options_(options),
        known_(options.anew ? std::vector<TuneTrial>()
                            : load_trials(options.state, load_text(options.load))) {
    for (TuneAxis& axis : tune_axes(processor_share().usable(), usable_cpus(), options.rdma)) {
      if (options.axes.empty() ||
          std::ranges::find(options.axes, axis.name) != options.axes.end()) {
        steps_ += axis.choices.size();
        axes_.push_back(std::move(axis));
      }
    }
    if (axes_.empty()) {
      refuse_tune(fail(Errc::invalid_argument, "--axis names none that there is; see --help"));
    }
    if (options.anew) {
      std::error_code error;
      std::filesystem::remove(options.state, error);
    }
  }

  void run() {
    for (const std::string& path : {options_.state, options_.plot}) {
      refuse_tune.need(can_be_written(path));
    }
    interrupted_text =
        fmt::format("{}nccl-ha tune: interrupted; the same command goes on from what is in {}\n",
                    isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", options_.state);
    if (signal(SIGINT, on_interrupt) == SIG_IGN) {
      signal(SIGINT, SIG_IGN);
    }
    fmt::print("{:<20} {:<44} {:>8} {:>7}  {}\n", "", "setting", "GB/s", "ratio",
               "95% interval of the ratio to the best before");
    for (const TuneAxis& axis : axes_) {
      for (const TunedEnvironment& choice : axis.choices) {
        progress();
        try_choice(axis.name, choice);
        ++step_;
      }
    }
    end_progress();
    conclude();
    signal(SIGINT, SIG_DFL);
  }

 private:
  /// On a terminal only, one line that is written over.
  void progress() const {
    if (isatty(STDERR_FILENO) != 0) {
      constexpr size_t width = 30;
      const size_t done = steps_ == 0 ? width : width * step_ / steps_;
      fmt::print(stderr, "\r[{}{}] {} of {}\033[K", std::string(done, '#'),
                 std::string(width - done, '.'), step_, steps_);
    }
  }
  static void end_progress() {
    if (isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "\r\033[K");
    }
  }

  TuneTrial trial_of(const std::string& axis, const TunedEnvironment& candidate,
                     const TunedEnvironment& against) {
    for (const TuneTrial& known : known_) {
      if (known.axis == axis && known.candidate == candidate && known.against == against) {
        return known;
      }
    }
    TuneTrial trial = measure(options_.load, axis, candidate, against);
    if (const std::string wrong = append_trial(options_.state, trial); !wrong.empty()) {
      refuse_tune(fail(Errc::system, wrong));
    }
    return trial;
  }

  void show(const TuneTrial& trial) {
    end_progress();
    if (!trial.failure.empty()) {
      fmt::print("{:<20} {:<44} does not work: {}\n", trial.axis, environment_text(trial.candidate),
                 trial.failure);
      return;
    }
    const RatioEstimate estimate = estimate_ratio(trial.ratios);
    fmt::print("{:<20} {:<44} {:>8.3f} {:>7.3f}  {}, {} rounds{}\n", trial.axis,
               environment_text(trial.candidate), trial.busbw_gbps, estimate.mean,
               estimate.rounds < rounds_least
                   ? fmt::format("from {} rounds on", rounds_least)
                   : fmt::format("{:.3f} to {:.3f}", estimate.low, estimate.high),
               estimate.rounds,
               estimate.faster()   ? ": faster"
               : estimate.slower() ? ": slower"
                                   : "");
    std::fflush(stdout);
  }

  void try_choice(const std::string& axis, const TunedEnvironment& choice) {
    const TunedEnvironment candidate = merged(best_, choice);
    if (candidate == best_) {
      return;
    }
    const TuneTrial trial = trial_of(axis, candidate, best_);
    show(trial);
    trials_.push_back(trial);
    if (trial.failure.empty() && estimate_ratio(trial.ratios).faster()) {
      best_ = candidate;
    }
  }

  /// A run of its own decides: of many that were tried one is lucky.
  void conclude() {
    if (std::ranges::none_of(trials_, [](const TuneTrial& one) { return one.failure.empty(); })) {
      refuse_tune(fail(Errc::system,
                       trials_.empty() ? "there was nothing to try"
                                       : "nothing could be measured: " + trials_.front().failure));
    }
    if (best_.empty()) {
      fmt::print("\nrecommended: the defaults; nothing was certainly faster\n");
    } else {
      const TuneTrial proof = trial_of("proof", best_, {});
      show(proof);
      trials_.push_back(proof);
      const RatioEstimate estimate = estimate_ratio(proof.ratios);
      if (proof.failure.empty() && !estimate.slower() && estimate.mean >= 1) {
        fmt::print(
            "\nrecommended: {:.1f}% faster than the defaults in a run of its own, {}\n",
            100 * (estimate.mean - 1),
            estimate.faster() ? "with 95% certainty more than none" : "which chance may explain");
        for (const auto& [name, value] : best_) {
          fmt::print("export {}={}\n", name, value);
        }
      } else if (!proof.failure.empty()) {
        fmt::print(
            "\nrecommended: the defaults; what seemed faster could not be measured in a run of its "
            "own\n");
      } else {
        fmt::print("\nrecommended: the defaults; what seemed faster was not in a run of its own\n");
      }
    }
    if (!options_.plot.empty()) {
      draw();
    }
  }

  void draw() const {
    Chart chart{"bandwidth of what was tried, by the best before it",
                {"trial", false, false},
                {"ratio", false, false, false},
                {},
                {}};
    ChartSeries mean{"ratio", {}, false};
    ChartSeries low{"95% interval", {}, true, 0};
    ChartSeries high{"", {}, true, 0};
    for (size_t i = 0; i < trials_.size(); ++i) {
      const RatioEstimate estimate = estimate_ratio(trials_[i].ratios);
      if (trials_[i].failure.empty()) {
        const auto x = static_cast<double>(i + 1);
        mean.points.emplace_back(x, estimate.mean);
        if (estimate.rounds >= rounds_least) {
          low.points.emplace_back(x, estimate.low);
          high.points.emplace_back(x, estimate.high);
        }
        if (i == 0 || trials_[i].axis != trials_[i - 1].axis) {
          chart.marks.push_back({x, trials_[i].axis});
        }
      }
    }
    chart.series = {mean, low, high};
    if (auto written = write_file(options_.plot, svg_of({chart})); !written) {
      refuse_tune(written.error());
    }
  }

  const TuneOptions& options_;
  const std::vector<TuneTrial> known_;
  std::vector<TuneAxis> axes_;
  size_t steps_ = 0;
  size_t step_ = 0;
  TunedEnvironment best_;
  std::vector<TuneTrial> trials_;
};

}  // namespace

void add_tune(CLI::App& app) {
  const auto options = std::make_shared<TuneOptions>();
  CLI::App* tune = app.add_subcommand(
      "tune",
      "Tries settings under load, on this host or on several, and recommends what is faster");
  TuneLoad& load = options->load;
  tune->add_option("operation", load.operation, "an operation of nccl-ha perf")
      ->capture_default_str();
  tune->add_option("-n,--ranks", load.ranks, "local ranks")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  tune->add_option("-b,--minbytes", load.min_bytes, "smallest size")->capture_default_str();
  tune->add_option("-e,--maxbytes", load.max_bytes, "largest size")->capture_default_str();
  tune->add_option("-I,--iters", load.iterations, "iterations of a round")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  tune->add_option("--rounds", load.rounds, "rounds of each setting, in turn with the best before")
      ->check(CLI::Range(2, 100))
      ->capture_default_str();
  tune->add_option("--plugin", load.plugin, "as in nccl-ha perf")->capture_default_str();
  tune->add_option("--axis", options->axes,
                   "only that: 'inline or threads', 'progress threads', 'pinning', 'idle policy', "
                   "'queue pairs', 'chunk size', 'paths of datagrams', 'window' (several times)");
  tune->add_flag("--rdma", options->rdma, "with what only RDMA has");
  tune->add_option("--state", options->state,
                   "file of what was measured; a run that was interrupted goes on from there")
      ->capture_default_str();
  tune->add_flag("--anew", options->anew, "forget what is in it");
  tune->add_option("--plot", options->plot, "draw the ratios into this SVG");
  add_remote_options(*tune, options->remote);
  tune->callback([options] {
    if (options->remote.given) {
      options->load.hosts = words_for_perf(options->remote);
    }
    std::error_code error;
    options->load.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
    Tuner(*options).run();
  });
}

}  // namespace nccl_ha::tools
