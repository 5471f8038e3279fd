// What tries of the network between hosts show to be wrong.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "tools/check/fold.h"
#include "tools/check/pairs.h"

namespace nccl_ha::tools {
namespace {

/// A pair that is so much worse than most others, and than what its hosts move to themselves, has
/// something in its way.
constexpr double outlier = 4;
constexpr size_t outliers_from = 3;    ///< pairs on a device, for the others to mean something
constexpr uint64_t lossy_from = 200;   ///< one segment lost of so many
constexpr uint64_t certain_from = 25;  ///< no host loses so many because it is busy
/// So many are tried again at most in one go: each takes a second or more, and those that fail as
/// long as their patience.  More than these are no accident.
constexpr size_t tries_again_max = 16;
constexpr size_t failing_again_max = 4;
/// Two devices of one pair differ by less than this where both are right.
constexpr double outlier_beside = 8;
/// No host that works needs so many times as long as its link, or as its own sockets.
constexpr double outlier_of_host = 100;
/// Links faster than this are not filled by one connection without RDMA.
constexpr int64_t compared_mbps_max = 10'000;
constexpr double megabits_per_gigabyte = 8000;

/// The value that this part of them does not exceed.
double quantile(std::vector<double> values, double part) {
  const auto at = static_cast<size_t>(static_cast<double>(values.size()) * part);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

bool has_any(const std::string& text, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

/// What a path says when it works again, and what each host says of itself (job_findings.h).
bool is_no_trouble(const std::string& line) {
  return has_any(line, {" is back after ", " are back after ", "is no longer slow",
                        "which was slow, carries data again",
                        "counters and flight recorders of this process are in plain memory"});
}

/// What the plugin's words show to be the cause of a pair's trouble.
struct Cause {
  std::array<const char*, 3> words;  ///< any of them; null: no more
  const char* remedy;
  /// It is on the host that says so, and the other one sees no more than that nothing comes.
  bool of_speaker = false;

  bool is_in(const std::string& said) const {
    return std::any_of(words.begin(), words.end(), [&](const char* part) {
      return part != nullptr && said.find(part) != std::string::npos;
    });
  }
};

constexpr Cause causes[] = {
    {{"RLIMIT_NOFILE", "Too many open files", nullptr},
     "raise the limit of open files on that host: ulimit -n, LimitNOFILE= of the service that "
     "starts jobs, --ulimit nofile= of a container; the network is not to blame",
     true},
    {{"RLIMIT_MEMLOCK", "ulimit -l", nullptr},
     "raise the limit of locked memory on that host to unlimited: ulimit -l, LimitMEMLOCK= of the "
     "service that starts jobs, --ulimit memlock=-1 of a container; the network is not to blame",
     true},
    {{"RLIMIT_NPROC", "RLIMIT_AS", "Cannot allocate memory"},
     "raise the limits of threads and memory on that host (ulimit -u, ulimit -v, the control "
     "group's); the network is not to blame",
     true},
    {{"NCCL_SOCKET_FAMILY", nullptr, nullptr},
     "give both hosts an address of one family on that rail, or set NCCL_SOCKET_FAMILY alike on "
     "all hosts; cables and filters are not to blame"},
    {{"has no free TCP port", nullptr, nullptr},
     "widen net.ipv4.ip_local_port_range on that host with sysctl, or end what holds its ports; "
     "the "
     "network is not to blame",
     true},
    {{"HA_NCCL_LISTEN_PORTS=", nullptr, nullptr},
     "widen HA_NCCL_LISTEN_PORTS, or set it to 0; the network is not to blame",
     true},
    {{"has no link", "have no link", nullptr},
     "check the cable and switch port of the interface that has no link, and `ip link show`"},
    {{"UDP is not filtered", nullptr, nullptr},
     "let UDP through between the hosts on that rail, both ways: look at nft list ruleset, "
     "iptables "
     "-S, security groups and switches' access lists"},
    {{"datagrams were lost", nullptr, nullptr},
     "look at errors and drops with `ethtool -S` at both ends and on the switch ports between; "
     "clean "
     "or replace cable and transceivers"},
    {{"MTU", nullptr, nullptr},
     "set one MTU on the interfaces of that rail and on all switch ports between"},
    {{nullptr, nullptr, nullptr},
     "check cable, switch port and VLAN of that rail, the addresses of both interfaces, and packet "
     "filters; `nccl-ha info` on both hosts shows what each would use"},
};
constexpr const Cause* unknown_cause = std::end(causes) - 1;

std::string why_fewer(const HostDevices& devices) {
  if (!devices.only.empty()) {
    return devices.only + " on that host leaves out others";
  }
  return devices.bare.empty() ? "one is down, has no address, or is left out by a setting"
                              : fmt::format("{} {} only a link-local address", listed(devices.bare),
                                            devices.bare.size() == 1 ? "has" : "have");
}

const Cause* cause_of(const std::string& said) {
  return std::find_if(std::begin(causes), unknown_cause,
                      [&](const Cause& one) { return one.is_in(said); });
}

/// More than one of so many get lost on the way, whether or not the pair got through with it.
bool loses_one_of(uint64_t number, const PairResult& pair) {
  const uint64_t lost = pair.segments_lost - std::min(pair.segments_lost, pair.segments_dropped);
  return lost * number > pair.segments;
}
bool loses_many(const PairResult& pair) { return loses_one_of(lossy_from, pair); }

std::string loss_text(const PairResult& pair) {
  return fmt::format("{} of {} datagrams were lost", pair.segments_lost, pair.segments);
}

/// The rate below which something is wrong whatever other pairs do; 0: unknown.
double least_rate(const PairResult& pair) {
  const double link =
      static_cast<double>(std::min(pair.speed_mbps, compared_mbps_max)) / megabits_per_gigabyte;
  return (pair.alone ? std::min(link, pair.own_gigabytes_per_s) : link) / outlier_of_host;
}

/// No slow host explains its rate: either moved many times as much to itself in that moment.
bool is_certainly_slow(const PairResult& pair) {
  return pair.alone && pair.gigabytes_per_s * outlier < pair.own_gigabytes_per_s;
}

/// What a device of `mbps` would carry if it did as well as another one; 0: their speeds cannot be
/// compared.
double expected_rate(int64_t mbps, const PairResult& other) {
  if ((mbps == 0) != (other.speed_mbps == 0)) {
    return 0;
  }
  return mbps < other.speed_mbps ? other.gigabytes_per_s * static_cast<double>(mbps) /
                                       static_cast<double>(other.speed_mbps)
                                 : other.gigabytes_per_s;
}

/// What the rate of a pair is compared with.
class Rates {
 public:
  explicit Rates(const std::vector<PairResult>& pairs) {
    for (const PairResult& pair : pairs) {
      if (pair.error.empty()) {
        of_hosts_[{pair.from, pair.to}].push_back(&pair);
        of_device_[pair.device].push_back(&pair);
      }
    }
  }

  /// Why it looks too low; empty: it does not.
  std::string why_slow(const PairResult& pair) {
    if (!pair.error.empty()) {
      return "";
    }
    if (const double others = of_others(pair); pair.gigabytes_per_s * outlier < others) {
      return fmt::format("others carry {:.3f}", others);
    }
    const PairResult* beside = nullptr;
    double best = 0;
    for (const PairResult* one : of_hosts_.at({pair.from, pair.to})) {
      const double rate = one->device == pair.device ? 0 : expected_rate(pair.speed_mbps, *one);
      if (rate > best) {
        best = rate;
        beside = one;
      }
    }
    if (pair.gigabytes_per_s * outlier_beside < best) {
      return fmt::format("{} carries {:.3f}", beside->device_name, beside->gigabytes_per_s);
    }
    return pair.gigabytes_per_s < least_rate(pair)
               ? fmt::format("the link has {} Mbit/s", pair.speed_mbps)
               : "";
  }

  /// Whether those on a device that look slow and were tried alone are slow indeed.
  bool are_certainly_slow(int device) {
    const auto [at, fresh] = certain_.try_emplace(device, false);
    if (!fresh) {
      return at->second;
    }
    for (const PairResult* one : of_device_[device]) {
      if (one->alone && !why_slow(*one).empty()) {
        at->second = is_certainly_slow(*one);
        if (!at->second) {
          break;
        }
      }
    }
    return at->second;
  }

 private:
  /// What a quarter of the pairs on its device carry: with few hosts, one of them may be at fault
  /// in half of all pairs.  0: too few to tell.
  double of_others(const PairResult& pair) {
    const auto [at, fresh] = upper_.try_emplace({pair.device, pair.speed_mbps});
    if (!fresh) {
      return at->second;
    }
    std::vector<double> rates;
    for (const PairResult* one : of_device_[pair.device]) {
      if (const double rate = expected_rate(pair.speed_mbps, *one); rate > 0) {
        rates.push_back(rate);
      }
    }
    if (rates.size() >= outliers_from) {
      at->second = quantile(std::move(rates), 0.75);
    }
    return at->second;
  }

  std::map<std::pair<uint32_t, uint32_t>, std::vector<const PairResult*>> of_hosts_;
  std::map<int, std::vector<const PairResult*>> of_device_;
  std::map<std::pair<int, int64_t>, double> upper_;  ///< by device and speed
  std::map<int, bool> certain_;
};

/// Those that failed as a busy host fails: too late, and nothing tells why.  The one first whose
/// hosts have the fewest such pairs, as a host that is at fault explains the others.
std::vector<size_t> failures_in_doubt(const std::vector<PairResult>& pairs) {
  std::map<std::pair<int, uint32_t>, size_t> of_host;
  std::vector<size_t> found;
  bool again = false;
  bool healed = false;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const PairResult& pair = pairs[i];
    healed |= pair.alone && pair.error.empty();
    if (pair.error.empty()) {
      continue;
    }
    ++of_host[{pair.device, pair.from}];
    ++of_host[{pair.device, pair.to}];
    const bool certain = pair.alone && pair.own_gigabytes_per_s > 0;
    again |= certain;
    if (!certain && cause_of(pair.error) == unknown_cause) {
      found.push_back(i);
    }
  }
  if (again && !healed) {
    return {};  // what failed again was no accident
  }
  const auto rank = [&](size_t i) {
    return std::max(of_host[{pairs[i].device, pairs[i].from}],
                    of_host[{pairs[i].device, pairs[i].to}]);
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](size_t one, size_t other) { return rank(one) < rank(other); });
  found.resize(std::min(found.size(), failing_again_max));
  return found;
}

class PairJudge {
 public:
  PairJudge(const std::vector<PairResult>& pairs, const std::vector<std::string>& hosts)
      : pairs_(pairs), hosts_(hosts) {}

  std::vector<Finding> run() {
    failures();
    warnings();
    losses();
    outliers();
    return std::move(found_);
  }

 private:
  using Pairs = std::vector<const PairResult*>;

  /// All that was said of it on both sides.
  static std::string said_of(const PairResult& pair) {
    std::string said = pair.error;
    for (const std::string& warning : pair.warnings) {
      said += is_no_trouble(warning) ? "" : "; " + warning;
    }
    return loses_many(pair) ? said + "; " + loss_text(pair) : said;
  }

  /// Which host says that the cause is on it.
  static std::optional<uint32_t> speaker(const Cause& cause, const PairResult& pair) {
    for (const auto& [rank, said] : pair.sides) {
      if (cause.of_speaker && cause.is_in(said)) {
        return rank;
      }
    }
    return std::nullopt;
  }

  void failures() {
    std::map<const Cause*, Pairs> by_cause;
    std::map<std::pair<const Cause*, uint32_t>, Pairs> by_speaker;
    for (const PairResult& pair : pairs_) {
      if (pair.error.empty() || pair.explained) {
        continue;
      }
      const Cause* cause = cause_of(said_of(pair));
      if (const auto host = speaker(*cause, pair)) {
        by_speaker[{cause, *host}].push_back(&pair);
      } else {
        by_cause[cause].push_back(&pair);
      }
    }
    // A pair whose cause is not known has that of its host, where one is known.
    Pairs unknown = std::move(by_cause[unknown_cause]);
    by_cause.erase(unknown_cause);
    for (auto& [key, failed] : by_speaker) {
      take_of_host(key.second, {}, unknown, failed);
      tell_of_speaker(*key.first, key.second, failed);
    }
    for (auto& [cause, failed] : by_cause) {
      for (const PairGroup& group : fold(failed, pairs_, hosts_)) {
        if (group.host) {
          take_of_host(*group.host, group.devices, unknown, failed);
        }
      }
      tell_failures(*cause, failed);
    }
    tell_failures(*unknown_cause, unknown);
  }

  /// Moves those of a host, on some devices or on all.
  static void take_of_host(uint32_t host, const std::vector<std::string>& devices, Pairs& from,
                           Pairs& to) {
    const auto rest = std::stable_partition(from.begin(), from.end(), [&](const PairResult* one) {
      const bool on_them = devices.empty() || std::find(devices.begin(), devices.end(),
                                                        one->device_name) != devices.end();
      return !on_them || (one->from != host && one->to != host);
    });
    to.insert(to.end(), rest, from.end());
    from.erase(rest, from.end());
  }

  void tell_failures(const Cause& cause, const Pairs& failed) {
    for (const PairGroup& group : fold(failed, pairs_, hosts_)) {
      tell_failure(cause, group);
    }
  }

  void tell_of_speaker(const Cause& cause, uint32_t host, const Pairs& failed) {
    found_.push_back(
        {Level::error,
         fmt::format("{}: {} with it {}: {}", hosts_[host], counted(failed.size(), "pair"),
                     failed.size() == 1 ? "fails" : "fail", failed.front()->sides.at(host)),
         cause.remedy,
         {}});
  }

  void tell_failure(const Cause& cause, const PairGroup& group) {
    const PairResult& first = *group.pairs.front();
    std::string text = first.error;
    if (loses_many(first)) {
      text += "; " + loss_text(first);
    }
    if (!group.host || !group.all_of_host) {
      found_.push_back({Level::error, fmt::format("{}: {}", group.where, text), cause.remedy, {}});
      return;
    }
    // Cables are accused where nothing else is known, and others reach each other on those rails.
    const bool perhaps_swapped = &cause == unknown_cause && group.devices.size() > 1;
    found_.push_back(
        {Level::error,
         fmt::format("no host reaches {} on {}: {}", hosts_[*group.host],
                     listed(group.devices, " or "), text),
         perhaps_swapped
             ? fmt::format("the cause is probably on {}: look at its addresses, routes and packet "
                           "filters, and whether its cables are swapped (`ip neigh`, `lldpctl`)",
                           hosts_[*group.host])
             : std::string(cause.remedy),
         {}});
  }

  void warnings() {
    std::map<const Cause*, Pairs> by_cause;
    std::map<const PairResult*, std::string> lines;
    std::set<std::string> said;
    for (const PairResult& pair : pairs_) {
      // Several lines about one pair are one finding; the first one is the cause.
      const std::string text = pair.error.empty() && !pair.explained ? warnings_of(pair, said) : "";
      if (!text.empty()) {
        lines[&pair] = text;
        by_cause[cause_of(text)].push_back(&pair);
      }
    }
    for (const auto& [cause, some] : by_cause) {
      for (const PairGroup& group : fold(some, pairs_, hosts_)) {
        found_.push_back({Level::warning,
                          fmt::format("{}: {}", group.where, lines[group.pairs.front()]),
                          cause->remedy,
                          {}});
      }
    }
  }

  void losses() {
    Pairs lossy;
    for (const PairResult& pair : pairs_) {
      if (is_lossy(pair) && !pair.explained) {
        lossy.push_back(&pair);
      }
    }
    for (const PairGroup& group : fold(lossy, pairs_, hosts_)) {
      PairResult sum;
      for (const PairResult* pair : group.pairs) {
        sum.segments += pair->segments;
        sum.segments_lost += pair->segments_lost;
      }
      const std::string text = loss_text(sum);
      found_.push_back({Level::warning,
                        fmt::format("{}: packets get lost: {}", group.where, text),
                        remedy_for(text),
                        {}});
    }
  }

  void outliers() {
    std::map<Outlier::Kind, Pairs> slow;
    std::map<const PairResult*, Outlier> about;
    for (const Outlier& one : find_outliers(pairs_)) {
      // What is lost is sent again, and takes its time.
      if (is_lossy(*one.pair) || one.pair->explained) {
        continue;
      }
      if (one.kind == Outlier::Kind::late) {
        found_.push_back(finding_of(one, fmt::format("{} and {} on {}", hosts_[one.pair->from],
                                                     hosts_[one.pair->to], one.pair->device_name)));
      } else {
        slow[one.kind].push_back(one.pair);
        about[one.pair] = one;
      }
    }
    for (const auto& [kind, some] : slow) {
      for (const PairGroup& group : fold(some, pairs_, hosts_)) {
        const auto slower = [](const PairResult* a, const PairResult* b) {
          return a->gigabytes_per_s < b->gigabytes_per_s;
        };
        const PairResult* worst = *std::min_element(group.pairs.begin(), group.pairs.end(), slower);
        found_.push_back(finding_of(about[worst], group.where));
      }
    }
  }

  const std::vector<PairResult>& pairs_;
  const std::vector<std::string>& hosts_;
  std::vector<Finding> found_;
};

}  // namespace

const char* remedy_for(const std::string& said) { return cause_of(said)->remedy; }

bool is_lossy(const PairResult& pair) {
  return pair.alone && pair.error.empty() && loses_many(pair);
}

std::vector<size_t> to_try_again(const std::vector<PairResult>& pairs) {
  Rates all(pairs);
  std::vector<size_t> found = failures_in_doubt(pairs);
  const size_t most = found.size() + tries_again_max;
  for (size_t i = 0; i < pairs.size() && found.size() < most; ++i) {
    const PairResult& pair = pairs[i];
    const bool lossy = loses_many(pair);
    const bool certain = lossy        ? pair.alone && loses_one_of(certain_from, pair)
                         : pair.alone ? is_certainly_slow(pair)
                                      : all.are_certainly_slow(pair.device);
    if (pair.error.empty() && !certain && (lossy || !all.why_slow(pair).empty())) {
      found.push_back(i);
    }
  }
  return found;
}

std::string warnings_of(const PairResult& pair, std::set<std::string>& said) {
  std::string lines;
  for (const std::string& warning : pair.warnings) {
    if (!is_no_trouble(warning) && said.insert(warning).second) {
      lines += (lines.empty() ? "" : "; ") + warning;
    }
  }
  return lines;
}

std::vector<Outlier> find_outliers(const std::vector<PairResult>& pairs) {
  std::map<int, std::vector<double>> times;
  for (const PairResult& pair : pairs) {
    if (pair.error.empty()) {
      times[pair.device].push_back(pair.round_trip_us);
    }
  }
  Rates all(pairs);
  std::vector<Outlier> found;
  for (const PairResult& pair : pairs) {
    if (!pair.error.empty()) {
      continue;
    }
    const std::vector<double>& of_all = times[pair.device];
    const double time = of_all.size() < outliers_from ? 0 : quantile(of_all, 0.5);
    if (const std::string why = all.why_slow(pair); !why.empty()) {
      // What was not tried alone is as likely as what was.
      if (pair.alone ? is_certainly_slow(pair) : all.are_certainly_slow(pair.device)) {
        found.push_back({&pair, Outlier::Kind::slow, why});
      } else if (pair.alone) {
        found.push_back({&pair, Outlier::Kind::perhaps_slow, why});
      }
    } else if (time > 0 && pair.round_trip_us > time * outlier) {
      found.push_back(
          {&pair, Outlier::Kind::late, fmt::format("the median of all pairs is {:.1f}", time)});
    }
  }
  return found;
}

Finding finding_of(const Outlier& outlier, const std::string& where) {
  const PairResult& pair = *outlier.pair;
  switch (outlier.kind) {
    case Outlier::Kind::slow:
      return {Level::warning,
              fmt::format("{}: {:.3f} GB/s, {}", where, pair.gigabytes_per_s, outlier.why),
              "look for errors and discards on the ports between them, a link that came up slow, "
              "or a limit of rate (`tc qdisc`); run the check again",
              {}};
    case Outlier::Kind::perhaps_slow:
      return {Level::hint,
              fmt::format("{}: {:.3f} GB/s, {}; a host moved {:.3f} to itself in that moment",
                          where, pair.gigabytes_per_s, outlier.why, pair.own_gigabytes_per_s),
              "a host is busy, or its NIC's slot is slow (LnkSta in `lspci -vv`): look what else "
              "runs there, and run the check again",
              {}};
    case Outlier::Kind::late:
      break;
  }
  return {
      Level::hint,
      fmt::format("{}: a round trip takes {:.1f} us, {}", where, pair.round_trip_us, outlier.why),
      "look at the route between them, and whether a host is busy; run the check again",
      {}};
}

std::vector<Finding> judge(const std::vector<PairResult>& pairs,
                           const std::vector<std::string>& hosts) {
  return PairJudge(pairs, hosts).run();
}

std::vector<Finding> judge_device_counts(const std::vector<HostDevices>& devices,
                                         const std::vector<std::string>& hosts) {
  size_t most = 0;
  for (const HostDevices& one : devices) {
    most = std::max(most, one.names.size());
  }
  const auto full = std::find_if(devices.begin(), devices.end(),
                                 [&](const auto& one) { return one.names.size() == most; });
  std::vector<Finding> found;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const HostDevices& one = devices[rank];
    if (one.names.size() == most || one.lost >= most - one.names.size()) {
      continue;  // that it has lost them is its own finding
    }
    // Such a device is tried with one of another network.
    std::vector<RailAt> displaced;
    for (size_t i = 0; i < one.names.size(); ++i) {
      if (one.networks[i] != full->networks[i]) {
        displaced.push_back({rank, one.names[i]});
      }
    }
    found.push_back(
        {Level::warning,
         fmt::format("{} has {}{}, other hosts have {}: {}", hosts[rank],
                     counted(one.names.size(), "usable data interface"),
                     one.names.empty() ? "" : fmt::format(" ({})", fmt::join(one.names, ", ")),
                     most, why_fewer(one)),
         fmt::format("compare `nccl-ha info` on {} and on another host; no connection of {} uses "
                     "what is missing",
                     hosts[rank], hosts[rank]),
         displaced});
  }
  return found;
}

}  // namespace nccl_ha::tools
