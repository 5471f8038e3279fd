#include "tools/check/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

constexpr unsigned long arp_complete = 2;  ///< ATF_COM of <linux/if_arp.h>

struct RailPlace {
  size_t host = 0;
  size_t rail = 0;
  bool operator==(const RailPlace&) const = default;
};

/// What `from` sends to a rail of a host arrives at another one of that host's.
struct Stray {
  size_t from = 0;
  RailPlace to;
  std::string address;
  size_t arrives = 0;  ///< rail
};

std::vector<Stray> find_strays(const std::vector<HostSheet>& sheets,
                               const std::vector<std::vector<Neighbour>>& neighbours) {
  std::map<std::string, RailPlace> by_address;
  std::map<std::string, std::vector<RailPlace>> by_mac;
  std::set<std::string> machines;
  for (size_t host = 0; host < sheets.size(); ++host) {
    if (!machines.insert(sheets[host].machine).second) {
      continue;  // another rank of one that is there already
    }
    for (size_t rail = 0; rail < sheets[host].rails.size(); ++rail) {
      for (const std::string& address : sheets[host].rails[rail].addresses) {
        by_address.emplace(address, RailPlace{host, rail});
      }
      by_mac[sheets[host].rails[rail].mac].push_back({host, rail});
    }
  }
  by_mac.erase("");
  std::vector<Stray> strays;
  for (size_t from = 0; from < std::min(sheets.size(), neighbours.size()); ++from) {
    for (const Neighbour& seen : neighbours[from]) {
      const auto to = by_address.find(seen.address);
      const auto there = by_mac.find(seen.mac);
      if (to == by_address.end() || there == by_mac.end() ||
          sheets[to->second.host].machine == sheets[from].machine) {
        continue;
      }
      // Interfaces on one device (VLANs) share its address.
      const std::vector<RailPlace>& places = there->second;
      const auto other = std::find_if(places.begin(), places.end(), [&](const RailPlace& place) {
        return place.host == to->second.host;
      });
      if (other != places.end() &&
          std::find(places.begin(), places.end(), to->second) == places.end()) {
        strays.push_back({from, to->second, seen.address, other->rail});
      }
    }
  }
  return strays;
}

/// Hosts that explain what went astray, each with what it explains.  With the host whose cables are
/// wrong all others have trouble, and they with that one only; of two hosts either may be it.
class Culprits {
 public:
  Culprits(std::vector<Stray> strays, const std::vector<HostSheet>& sheets,
           const std::vector<std::string>& names)
      : strays_(std::move(strays)), sheets_(sheets), names_(names) {}

  std::vector<Finding> run() {
    std::vector<Finding> found;
    while (!strays_.empty()) {
      std::map<size_t, std::set<size_t>> with;
      for (const Stray& one : strays_) {
        with[one.from].insert(one.to.host);
        with[one.to.host].insert(one.from);
      }
      const auto worst = std::max_element(
          with.begin(), with.end(),
          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
      const size_t host = worst->first;
      const std::set<size_t>& others = worst->second;
      const auto equal = std::find_if(others.begin(), others.end(), [&](size_t other) {
        return with[other].size() == others.size();
      });
      if (equal == others.end()) {
        add(found, fmt::format("the cables of {} are swapped", names_[host]),
            take([&](const Stray& one) { return one.from == host || one.to.host == host; }), host);
      } else {
        add(found, fmt::format("the cables of {} or {} are swapped", names_[host], names_[*equal]),
            take([&](const Stray& one) {
              return std::minmax(one.from, one.to.host) == std::minmax(host, *equal);
            }),
            *equal);
      }
    }
    return found;
  }

 private:
  template <class F>
  std::vector<Stray> take(F&& chosen) {
    const auto rest = std::stable_partition(strays_.begin(), strays_.end(),
                                            [&](const Stray& one) { return !chosen(one); });
    std::vector<Stray> part(rest, strays_.end());
    strays_.erase(rest, strays_.end());
    return part;
  }

  /// What goes astray to `host`, or where nothing does what it sends.
  void add(std::vector<Finding>& found, const std::string& begin, const std::vector<Stray>& part,
           size_t host) const {
    const bool any = std::any_of(part.begin(), part.end(),
                                 [&](const Stray& one) { return one.to.host == host; });
    std::set<std::string> lines;
    for (const Stray& one : part) {
      if (!any || one.to.host == host) {
        const HostSheet& sheet = sheets_[one.to.host];
        lines.insert(fmt::format("what is sent to {} ({} of {}) arrives at {}", one.address,
                                 sheet.rails[one.to.rail].name, names_[one.to.host],
                                 sheet.rails[one.arrives].name));
      }
    }
    std::string text;
    for (const std::string& line : lines) {
      text += (text.empty() ? "" : ", ") + line;
    }
    found.push_back(
        {Level::error, fmt::format("{}: {}", begin, text),
         "exchange the cables of these rails at that host, or its addresses; where both rails are "
         "in one switch: sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 "
         "on all hosts"});
  }

  std::vector<Stray> strays_;
  const std::vector<HostSheet>& sheets_;
  const std::vector<std::string>& names_;
};

}  // namespace

std::vector<Neighbour> read_neighbours(const std::string& file) {
  std::vector<Neighbour> all;
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);  // the titles
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string type;
    std::string flags;
    Neighbour one;
    if (words >> one.address >> type >> flags >> one.mac &&
        (std::strtoul(flags.c_str(), nullptr, 16) & arp_complete) != 0) {
      all.push_back(std::move(one));
    }
  }
  return all;
}

json to_json(const std::vector<Neighbour>& neighbours) {
  json all = json::array();
  for (const Neighbour& one : neighbours) {
    all.push_back({one.address, one.mac});
  }
  return all;
}

std::vector<Neighbour> neighbours_from_json(const json& from) {
  std::vector<Neighbour> all;
  for (const json& one : from) {
    if (one.is_array() && one.size() == 2 && one[0].is_string() && one[1].is_string()) {
      all.push_back({one[0], one[1]});
    }
  }
  return all;
}

std::vector<Finding> judge_neighbours(const std::vector<HostSheet>& sheets,
                                      const std::vector<std::vector<Neighbour>>& neighbours,
                                      const std::vector<std::string>& names) {
  return Culprits(find_strays(sheets, neighbours), sheets, names).run();
}

}  // namespace nccl_ha::tools
