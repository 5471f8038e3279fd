// What tries of the network between hosts show to be wrong.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>

#include "tools/check/pairs.h"

namespace nccl_ha::tools {
namespace {

/// A pair that is so much worse than the median of all has something in its way.
constexpr double outlier = 4;
constexpr size_t outliers_from = 3;   ///< pairs on a device, for a median to mean something
constexpr uint64_t lossy_from = 200;  ///< one segment lost of so many

double middle_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

bool has_any(const std::string& text, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

/// What a path says when it works again.
bool is_good_news(const std::string& line) {
  return has_any(line, {" is back after ", " are back after ", "is no longer slow",
                        "which was slow, carries data again"});
}

/// A host that no other reaches on two rails or more, while they reach each other there: its cables
/// may be where those of the other rail belong.
void judge_cables(const std::vector<PairResult>& pairs, const std::vector<std::string>& hosts,
                  std::vector<Finding>& found) {
  std::map<uint32_t, std::map<std::string, bool>> reached;  // by host and device
  std::set<std::string> works_somewhere;
  for (const PairResult& pair : pairs) {
    for (const uint32_t host : {pair.from, pair.to}) {
      reached[host][pair.device_name] |= pair.error.empty();
    }
    if (pair.error.empty()) {
      works_somewhere.insert(pair.device_name);
    }
  }
  for (const auto& [host, devices] : reached) {
    std::vector<std::string> lost;
    for (const auto& [device, works] : devices) {
      if (!works && works_somewhere.count(device) != 0) {
        lost.push_back(device);
      }
    }
    if (lost.size() >= 2) {
      found.push_back({Level::error,
                       fmt::format("{} is reached by nobody on {}, where the others reach each "
                                   "other: its cables may be swapped",
                                   hosts[host], fmt::join(lost, " and ")),
                       "compare where they lead: `ip neigh`, `lldpctl`, the switches' tables of "
                       "addresses; or its interfaces have each other's addresses"});
    }
  }
}

}  // namespace

const char* remedy_for(const std::string& said) {
  if (has_any(said, {"RLIMIT_NOFILE", "Too many open files"})) {
    return "raise the limit of open files on that host: ulimit -n, LimitNOFILE= of the service "
           "that "
           "starts jobs, --ulimit nofile= of a container; the network is not to blame";
  }
  if (has_any(said, {"RLIMIT_MEMLOCK", "ulimit -l"})) {
    return "raise the limit of locked memory on that host to unlimited: ulimit -l, LimitMEMLOCK= "
           "of "
           "the service that starts jobs, --ulimit memlock=-1 of a container; the network is not "
           "to "
           "blame";
  }
  if (has_any(said, {"RLIMIT_NPROC", "RLIMIT_AS", "Cannot allocate memory"})) {
    return "raise the limits of threads and memory on that host (ulimit -u, ulimit -v, the control "
           "group's); the network is not to blame";
  }
  if (has_any(said, {"NCCL_SOCKET_FAMILY"})) {
    return "give both hosts an address of one family on that rail, or set NCCL_SOCKET_FAMILY alike "
           "on all hosts; cables and filters are not to blame";
  }
  if (has_any(said, {"has no free TCP port"})) {
    return "widen net.ipv4.ip_local_port_range on that host with sysctl, or end what holds its "
           "ports; the network is not to blame";
  }
  if (has_any(said, {"HA_NCCL_LISTEN_PORTS="})) {
    return "widen HA_NCCL_LISTEN_PORTS, or set it to 0; the network is not to blame";
  }
  if (has_any(said, {"has no link", "have no link"})) {
    return "check the cable and switch port of the interface that has no link, and `ip link show`";
  }
  if (has_any(said, {"UDP is not filtered"})) {
    return "let UDP through between the hosts on that rail, both ways: look at nft list ruleset, "
           "iptables -S, security groups and switches' access lists";
  }
  if (has_any(said, {"MTU"})) {
    return "set one MTU on the interfaces of that rail and on all switch ports between";
  }
  return "check cable, switch port and VLAN of that rail, the addresses of both interfaces, and "
         "packet filters; `nccl-ha info` on both hosts shows what each would use";
}

bool is_lossy(const PairResult& pair) {
  return pair.error.empty() && pair.segments_lost * lossy_from > pair.segments;
}

std::vector<size_t> to_try_again(const std::vector<PairResult>& pairs) {
  std::vector<double> rates;
  for (const PairResult& pair : pairs) {
    if (pair.error.empty()) {
      rates.push_back(pair.gigabytes_per_s);
    }
  }
  const double rate = rates.empty() ? 0 : middle_of(rates);
  std::vector<size_t> found;
  for (const PairResult& pair : pairs) {
    const bool stalled = has_any(pair.error, {"small messages: ", "large messages: "});
    const bool worse = is_lossy(pair) || pair.gigabytes_per_s * outlier < rate;
    if (stalled || (pair.error.empty() && worse)) {
      found.push_back(static_cast<size_t>(pair.device));
    }
  }
  return found;
}

std::string warnings_of(const PairResult& pair, std::set<std::string>& said) {
  std::string lines;
  for (const std::string& warning : pair.warnings) {
    if (!is_good_news(warning) && said.insert(warning).second) {
      lines += (lines.empty() ? "" : "; ") + warning;
    }
  }
  return lines;
}

void judge_outliers(const std::vector<PairResult>& pairs,
                    const std::function<std::string(const PairResult&)>& name,
                    std::vector<Finding>& found) {
  std::map<int, std::vector<const PairResult*>> by_device;
  for (const PairResult& pair : pairs) {
    if (pair.error.empty()) {
      by_device[pair.device].push_back(&pair);
    }
  }
  for (const auto& [device, good] : by_device) {
    if (good.size() < outliers_from) {
      continue;
    }
    std::vector<double> times;
    std::vector<double> rates;
    for (const PairResult* pair : good) {
      times.push_back(pair->round_trip_us);
      rates.push_back(pair->gigabytes_per_s);
    }
    const double time = middle_of(times);
    const double rate = middle_of(rates);
    for (const PairResult* pair : good) {
      if (pair->gigabytes_per_s * outlier < rate) {
        found.push_back({Level::warning,
                         fmt::format("{}: {:.3f} GB/s, the median of all pairs is {:.3f}",
                                     name(*pair), pair->gigabytes_per_s, rate),
                         "look for errors and discards on the ports between them, a link that came "
                         "up slow, or a busy host; run the check again"});
      } else if (pair->round_trip_us > time * outlier) {
        found.push_back({Level::hint,
                         fmt::format("{}: a round trip takes {:.1f} us, the median of all pairs "
                                     "is {:.1f}",
                                     name(*pair), pair->round_trip_us, time),
                         "look at the route between them, and whether a host is busy; run the "
                         "check again"});
      }
    }
  }
}

std::vector<Finding> judge(const std::vector<PairResult>& pairs,
                           const std::vector<std::string>& hosts) {
  std::vector<Finding> found;
  const auto name = [&](const PairResult& pair) {
    return fmt::format("{} and {} on device {} ({})", hosts[pair.from], hosts[pair.to], pair.device,
                       pair.device_name);
  };
  std::set<std::string> said;
  for (const PairResult& pair : pairs) {
    if (!pair.error.empty() && said.insert(name(pair)).second) {
      // What the plugin said on the way there is no finding of its own, but may name the cause.
      std::string said_of_it = pair.error;
      for (const std::string& warning : pair.warnings) {
        said_of_it += is_good_news(warning) ? "" : "; " + warning;
      }
      found.push_back(
          {Level::error, fmt::format("{}: {}", name(pair), pair.error), remedy_for(said_of_it)});
      continue;
    }
    // Several lines about one pair are one finding; the first one is the cause.
    const std::string lines = warnings_of(pair, said);
    if (!lines.empty()) {
      found.push_back(
          {Level::warning, fmt::format("{}: {}", name(pair), lines), remedy_for(lines)});
    }
  }
  judge_cables(pairs, hosts, found);
  judge_outliers(pairs, name, found);
  return found;
}

std::vector<Finding> judge_device_counts(const std::vector<size_t>& counts,
                                         const std::vector<std::string>& hosts) {
  const size_t most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  std::map<size_t, std::vector<std::string>, std::greater<>> fewer;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] < most) {
      fewer[counts[rank]].push_back(hosts[rank]);
    }
  }
  std::vector<Finding> found;
  found.reserve(fewer.size());
  for (const auto& [count, names] : fewer) {
    found.push_back({Level::warning,
                     fmt::format("{} where other hosts have {} devices for the network: {}", count,
                                 most, fmt::join(names, ", ")),
                     "compare `nccl-ha info` there and on another host: a rail may be down or "
                     "without an address, or a setting leaves it out; it is used by no connection "
                     "of that host"});
  }
  return found;
}

}  // namespace nccl_ha::tools
