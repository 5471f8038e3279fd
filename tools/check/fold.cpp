#include "tools/check/fold.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace nccl_ha::tools {
namespace {

constexpr size_t hosts_of_a_group = 3;  ///< two hosts are named

class Folding {
 public:
  Folding(const std::vector<const PairResult*>& some, const std::vector<PairResult>& all,
          const std::vector<std::string>& names)
      : left_(some), all_(all), names_(names) {}

  std::vector<PairGroup> run() {
    whole_devices();
    while (!left_.empty()) {
      std::map<uint32_t, std::set<uint32_t>> peers;
      for (const PairResult* pair : left_) {
        peers[pair->from].insert(pair->to);
        peers[pair->to].insert(pair->from);
      }
      const auto most = std::max_element(
          peers.begin(), peers.end(),
          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
      if (most->second.size() > 1) {
        of_host(most->first, most->second);
      } else {
        of_two(left_.front()->from, left_.front()->to);
      }
    }
    return std::move(groups_);
  }

 private:
  template <class F>
  PairGroup take(F&& chosen) {
    PairGroup group;
    const auto rest = std::stable_partition(left_.begin(), left_.end(),
                                            [&](const PairResult* one) { return !chosen(*one); });
    group.pairs.assign(rest, left_.end());
    left_.erase(rest, left_.end());
    std::map<int, std::string> devices;
    for (const PairResult* pair : group.pairs) {
      devices.emplace(pair->device, pair->device_name);
    }
    for (const auto& [number, name] : devices) {
      group.devices.push_back(name);
    }
    return group;
  }

  size_t count_all(int device, std::optional<uint32_t> host) const {
    return static_cast<size_t>(std::count_if(all_.begin(), all_.end(), [&](const PairResult& one) {
      return one.device == device && (!host || one.from == *host || one.to == *host);
    }));
  }

  /// A rail on which no pair is spared.
  void whole_devices() {
    std::map<int, size_t> counts;
    for (const PairResult* pair : left_) {
      ++counts[pair->device];
    }
    std::set<int> whole;
    for (const auto& [device, count] : counts) {
      std::set<uint32_t> hosts;
      for (const PairResult& pair : all_) {
        if (pair.device == device) {
          hosts.insert({pair.from, pair.to});
        }
      }
      if (hosts.size() >= hosts_of_a_group && count == count_all(device, std::nullopt)) {
        whole.insert(device);
      }
    }
    if (!whole.empty()) {
      PairGroup group = take([&](const PairResult& one) { return whole.contains(one.device); });
      group.where = fmt::format("{}: all pairs of hosts", listed(group.devices));
      groups_.push_back(std::move(group));
    }
  }

  void of_host(uint32_t host, const std::set<uint32_t>& peers) {
    PairGroup group =
        take([&](const PairResult& one) { return one.from == host || one.to == host; });
    std::map<int, size_t> counts;
    for (const PairResult* pair : group.pairs) {
      ++counts[pair->device];
    }
    group.host = host;
    group.all_of_host = std::all_of(counts.begin(), counts.end(), [&](const auto& one) {
      return one.second == count_all(one.first, host);
    });
    std::vector<std::string> others;
    for (const uint32_t peer : peers) {
      others.push_back(names_[peer]);
    }
    group.where =
        group.all_of_host
            ? fmt::format("{}, {}: all pairs", names_[host], listed(group.devices))
            : fmt::format("{} with {} on {}", names_[host], listed(others), listed(group.devices));
    groups_.push_back(std::move(group));
  }

  void of_two(uint32_t from, uint32_t to) {
    PairGroup group = take([&](const PairResult& one) { return one.from == from && one.to == to; });
    group.where = fmt::format("{} and {} on {}", names_[from], names_[to], listed(group.devices));
    groups_.push_back(std::move(group));
  }

  std::vector<const PairResult*> left_;
  const std::vector<PairResult>& all_;
  const std::vector<std::string>& names_;
  std::vector<PairGroup> groups_;
};

}  // namespace

std::vector<PairGroup> fold(const std::vector<const PairResult*>& some,
                            const std::vector<PairResult>& all,
                            const std::vector<std::string>& names) {
  return Folding(some, all, names).run();
}

std::string listed(const std::vector<std::string>& words, const char* last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
  }
  return text;
}

}  // namespace nccl_ha::tools
