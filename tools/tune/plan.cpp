#include "tools/tune/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace nccl_ha::tools {

namespace {

/// "8,9,10".
std::string list_of(std::span<const int> cpus) { return fmt::format("{}", fmt::join(cpus, ",")); }

}  // namespace

std::vector<TuneAxis> tune_axes(size_t processors, std::span<const int> cpus, bool rdma) {
  const auto one = [](const char* name, const std::string& value) {
    return TunedEnvironment{{name, value}};
  };
  std::vector<TuneAxis> axes;
  TuneAxis threads{
      "inline or threads",
      {one("HA_NCCL_USE_PROGRESS_THREAD", "0"), one("HA_NCCL_USE_PROGRESS_THREAD", "1")}};
  axes.push_back(threads);
  TuneAxis counts{"progress threads", {}};
  for (size_t count = 1; count <= std::min<size_t>(processors, 8); count *= 2) {
    counts.choices.push_back(one("HA_NCCL_PROGRESS_THREADS", std::to_string(count)));
  }
  axes.push_back(counts);
  if (cpus.size() > 2) {
    axes.push_back({"pinning",
                    {one("HA_NCCL_PROGRESS_CPUS", list_of(cpus.last(1))),
                     one("HA_NCCL_PROGRESS_CPUS", list_of(cpus.subspan(cpus.size() / 2)))}});
  }
  axes.push_back({"idle policy",
                  {one("HA_NCCL_IDLE_SPIN_US", "0"), one("HA_NCCL_IDLE_SPIN_US", "20"),
                   one("HA_NCCL_IDLE_SPIN_US", "200"), one("HA_NCCL_IDLE_SPIN_US", "2000")}});
  if (rdma) {
    axes.push_back(
        {"queue pairs",
         {one("HA_NCCL_IB_QPS_PER_CONNECTION", "1"), one("HA_NCCL_IB_QPS_PER_CONNECTION", "2"),
          one("HA_NCCL_IB_QPS_PER_CONNECTION", "4")}});
    axes.push_back(
        {"chunk size",
         {one("HA_NCCL_IB_SPLIT_BYTES", "65536"), one("HA_NCCL_IB_SPLIT_BYTES", "262144"),
          one("HA_NCCL_IB_SPLIT_BYTES", "1048576")}});
  } else {
    axes.push_back(
        {"paths of datagrams", {one("HA_NCCL_DGRAM_PATHS", "1"), one("HA_NCCL_DGRAM_PATHS", "2")}});
    axes.push_back({"window",
                    {one("HA_NCCL_DGRAM_WINDOW", "256"), one("HA_NCCL_DGRAM_WINDOW", "1024"),
                     one("HA_NCCL_DGRAM_WINDOW", "4096")}});
  }
  return axes;
}

std::string environment_text(const TunedEnvironment& environment) {
  std::string text;
  for (const auto& [name, value] : environment) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  }
  return text.empty() ? "the defaults" : text;
}

TunedEnvironment merged(const TunedEnvironment& base, const TunedEnvironment& more) {
  TunedEnvironment all = base;
  for (const auto& [name, value] : more) {
    all[name] = value;
  }
  return all;
}

}  // namespace nccl_ha::tools
