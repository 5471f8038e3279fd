#include "tools/perf/faults.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

namespace nccl_ha::tools {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

Result<FaultStep> parse_one(std::string_view text) {
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos) {
    return fail(Errc::invalid_argument,
                fmt::format("--fault: '{}' does not say when; write, say, cut rail0@2s", text));
  }
  FaultStep step;
  step.text = trimmed(text.substr(0, at));
  std::string_view when = trimmed(text.substr(at + 1));
  if (when.starts_with('/')) {
    step.file = std::exchange(when, "0s");
  }
  const size_t dots = when.find("..");
  const auto earliest = lab::parse_time(when.substr(0, dots));
  const auto latest =
      dots == std::string_view::npos ? earliest : lab::parse_time(when.substr(dots + 2));
  if (!earliest || !latest || *latest < *earliest) {
    return fail(
        Errc::invalid_argument,
        fmt::format("--fault: '{}' is no time; write 2s, 250ms, 0.5s..1s or a file's path", when));
  }
  step.earliest = *earliest;
  step.latest = *latest;
  // Scripts of the lab have the same grammar, with the time in front.
  auto parsed = lab::parse_script(fmt::format("0s {}", step.text));
  if (!parsed || parsed->size() != 1) {
    return fail(Errc::invalid_argument,
                fmt::format("--fault: {}", parsed ? "one request per step" : parsed.error().what));
  }
  step.request = parsed->front().request;
  return step;
}

}  // namespace

Result<std::vector<FaultStep>> parse_faults(std::string_view text) {
  std::vector<FaultStep> steps;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    auto step = parse_one(text.substr(0, end));
    if (!step) {
      return step.error();
    }
    steps.push_back(std::move(*step));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return steps;
}

Duration percentile(const std::vector<Duration>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

FaultRunner::FaultRunner(std::vector<FaultStep> plan, uint32_t rounds, uint64_t seed)
    : plan_(std::move(plan)), rounds_(rounds), random_(seed) {}

FaultRunner::~FaultRunner() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

Result<void> FaultRunner::start() {
  const char* name = getenv("NHA_LAB");
  if (name == nullptr) {
    return fail(Errc::invalid_usage, "--fault works on the hosts of a lab (`nccl-ha lab run`)");
  }
  auto lab = lab::running_lab(name);
  if (!lab) {
    return lab.error();
  }
  lab_ = *lab;
  thread_ = std::thread([this] { run(); });
  return {};
}

bool FaultRunner::wait_until(Instant when) {
  std::unique_lock lock(mutex_);
  while (!ending_ && clock_.now() < when) {
    changed_.wait_for(lock, when - clock_.now());
  }
  return !ending_;
}

bool FaultRunner::wait_for(const std::string& file) {
  constexpr Duration look_every = std::chrono::milliseconds(10);
  std::unique_lock lock(mutex_);
  while (!ending_ && access(file.c_str(), F_OK) != 0) {
    changed_.wait_for(lock, look_every);
  }
  return !ending_;
}

void FaultRunner::run() {
  Instant begin = clock_.now();
  for (uint32_t round = 0; round < rounds_; ++round) {
    Instant end = begin;
    for (const FaultStep& step : plan_) {
      if (!step.file.empty()) {
        if (!wait_for(step.file)) {
          return;
        }
        begin = clock_.now();
      }
      const auto span = static_cast<uint64_t>((step.latest - step.earliest).count());
      const Instant due = begin + step.earliest + Duration(random_.below(span + 1));
      if (!wait_until(due)) {
        return;
      }
      const Instant asked = clock_.now();
      auto answer = lab::ask_lab(lab_, lab::to_json(step.request));
      const Instant answered = clock_.now();
      begin += std::max(answered - due, Duration(0));  // a busy host keeps their distances
      std::lock_guard lock(mutex_);
      if (!answer) {
        refused_ =
            fail(answer.code(), fmt::format("--fault {}: {}", step.text, answer.error().what));
        over_ = true;
        return;
      }
      if (step.request.verb != lab::Verb::heal) {
        done_.push_back({step.text, asked, {}});
      }
      const auto lasts = lab::parse_time(step.request.lasts);
      end = std::max(end, answered + (lasts ? *lasts : Duration(0)));
    }
    if (!wait_until(end)) {
      return;
    }
    begin = std::max(end, clock_.now());
  }
  std::lock_guard lock(mutex_);
  over_ = true;
}

bool FaultRunner::active() {
  std::lock_guard lock(mutex_);
  return !over_;
}

Result<std::vector<FaultReport>> FaultRunner::finish(const std::vector<Gap>& gaps) {
  std::lock_guard lock(mutex_);
  if (refused_.code != Errc::ok) {
    return refused_;
  }
  for (size_t i = 0; i < done_.size(); ++i) {
    const Instant from = done_[i].at;
    const Instant to = i + 1 < done_.size() ? done_[i + 1].at : Instant::max();
    for (const Gap& gap : gaps) {
      if (gap.end > from && gap.begin < to) {
        done_[i].stall = std::max(done_[i].stall, gap.end - std::max(gap.begin, from));
      }
    }
  }
  return done_;
}

}  // namespace nccl_ha::tools
