#include "tools/check/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
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

bool share_network(const RailSheet& one, const RailSheet& other) {
  return std::any_of(one.networks.begin(), one.networks.end(), [&](const std::string& network) {
    return std::find(other.networks.begin(), other.networks.end(), network) != other.networks.end();
  });
}

class Strays {
 public:
  explicit Strays(const std::vector<HostSheet>& sheets) : sheets_(sheets) {
    std::set<std::string> machines;
    for (size_t host = 0; host < sheets.size(); ++host) {
      if (!machines.insert(sheets[host].machine).second) {
        continue;  // another rank of one that is there already
      }
      for (size_t rail = 0; rail < sheets[host].rails.size(); ++rail) {
        for (const std::string& address : sheets[host].rails[rail].addresses) {
          by_address_.emplace(address, RailPlace{host, rail});
        }
        by_mac_[sheets[host].rails[rail].mac].push_back({host, rail});
      }
    }
    by_mac_.erase("");
  }

  std::vector<Stray> run(const std::vector<std::vector<Neighbour>>& neighbours) const {
    std::vector<Stray> strays;
    for (size_t from = 0; from < std::min(sheets_.size(), neighbours.size()); ++from) {
      std::vector<Stray> seen;  // also what is right
      for (const Neighbour& one : neighbours[from]) {
        if (const auto found = look_at(from, one)) {
          seen.push_back(*found);
        }
      }
      std::copy_if(seen.begin(), seen.end(), std::back_inserter(strays), [&](const Stray& one) {
        return one.arrives != one.to.rail && answers_for_one(one, seen);
      });
    }
    return strays;
  }

 private:
  /// Where what a host sends to an address arrives; nothing where that says nothing of cables.
  std::optional<Stray> look_at(size_t from, const Neighbour& seen) const {
    const auto to = by_address_.find(seen.address);
    const auto there = by_mac_.find(seen.mac);
    if (to == by_address_.end() || there == by_mac_.end() ||
        sheets_[to->second.host].machine == sheets_[from].machine) {
      return std::nullopt;
    }
    const std::vector<RailSheet>& rails = sheets_[to->second.host].rails;
    const RailSheet& meant = rails[to->second.rail];
    const auto& own = sheets_[from].rails;
    // What another host asks teaches its address too, on the interface that hears the question:
    // only one in the address's network has asked itself.
    if (std::none_of(own.begin(), own.end(), [&](const RailSheet& rail) {
          return rail.interface == seen.device && share_network(rail, meant);
        })) {
      return std::nullopt;
    }
    // Interfaces on one device (VLANs) share its address.
    const std::vector<RailPlace>& places = there->second;
    if (std::find(places.begin(), places.end(), to->second) != places.end()) {
      return Stray{from, to->second, seen.address, to->second.rail};
    }
    const auto other = std::find_if(places.begin(), places.end(), [&](const RailPlace& place) {
      return place.host == to->second.host;
    });
    if (other == places.end() || share_network(rails[other->rail], meant)) {
      return std::nullopt;
    }
    return Stray{from, to->second, seen.address, other->rail};
  }

  /// Where cables are exchanged, each interface gets what another one should.
  static bool answers_for_one(const Stray& stray, const std::vector<Stray>& seen) {
    return std::none_of(seen.begin(), seen.end(), [&](const Stray& one) {
      return one.to.host == stray.to.host && one.to.rail != stray.to.rail &&
             one.arrives == stray.arrives;
    });
  }

  const std::vector<HostSheet>& sheets_;
  std::map<std::string, RailPlace> by_address_;
  std::map<std::string, std::vector<RailPlace>> by_mac_;
};

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
    std::vector<RailAt> rails;
    for (const Stray& one : part) {
      if (!any || one.to.host == host) {
        for (const size_t rail : {one.to.rail, one.arrives}) {
          if (rail < sheets_[host].rails.size()) {
            rails.push_back({host, sheets_[host].rails[rail].name});
          }
        }
        const HostSheet& sheet = sheets_[one.to.host];
        lines.insert(fmt::format("traffic for {} ({} of {}) arrives at {}", one.address,
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
         "on all hosts",
         std::move(rails)});
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
    std::string mask;
    if (words >> one.address >> type >> flags >> one.mac >> mask >> one.device &&
        (std::strtoul(flags.c_str(), nullptr, 16) & arp_complete) != 0) {
      all.push_back(std::move(one));
    }
  }
  return all;
}

json to_json(const std::vector<Neighbour>& neighbours) {
  json all = json::array();
  for (const Neighbour& one : neighbours) {
    all.push_back({one.address, one.mac, one.device});
  }
  return all;
}

std::vector<Neighbour> neighbours_from_json(const json& from) {
  std::vector<Neighbour> all;
  for (const json& one : from) {
    if (one.is_array() && one.size() == 3 &&
        std::all_of(one.begin(), one.end(), [](const json& text) { return text.is_string(); })) {
      all.push_back({one[0], one[1], one[2]});
    }
  }
  return all;
}

std::vector<Finding> judge_neighbours(const std::vector<HostSheet>& sheets,
                                      const std::vector<std::vector<Neighbour>>& neighbours,
                                      const std::vector<std::string>& names) {
  return Culprits(Strays(sheets).run(neighbours), sheets, names).run();
}

}  // namespace nccl_ha::tools
