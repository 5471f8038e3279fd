#include "relay/topology_file.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

namespace nccl_ha::relay {
namespace {

std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  size_t at = 0;
  while ((at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

bool is_name(std::string_view word) {
  return !word.empty() && word.size() <= node_name_max &&
         std::all_of(word.begin(), word.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

template <class T>
std::optional<T> number_of(std::string_view word, T most) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool whole = error == std::errc{} && end == word.data() + word.size();
  return whole && value <= most ? std::optional(value) : std::nullopt;
}

/// Takes one line after the other.
class FileReader {
 public:
  explicit FileReader(std::string_view where) : where_(where) {}

  Result<void> line(std::string_view text) {
    ++number_;
    const auto words = words_of(text);
    if (words.empty()) {
      return {};
    }
    if (words[0] == "node") {
      return node(words);
    }
    if (words[0] == "cable") {
      return cable(words);
    }
    return wrong(fmt::format("'{}' is neither node nor cable", words[0].substr(0, 40)));
  }

  std::vector<LinkState> take() { return std::move(states_); }

 private:
  Error wrong(const std::string& what) const {
    return fail(Errc::invalid_argument, fmt::format("{}:{}: {}", where_, number_, what));
  }

  Result<void> node(const std::vector<std::string_view>& words) {
    if (words.size() < 3 || !is_name(words[1])) {
      return wrong("write: node NAME ADDRESS[/PREFIX]... [no-relay]");
    }
    if (states_.size() >= topology_file_nodes_max) {
      return wrong(fmt::format("more than {} nodes", topology_file_nodes_max));
    }
    LinkState state;
    state.name = words[1];
    state.origin = node_id_of_name(state.name);
    for (size_t i = 2; i < words.size(); ++i) {
      if (words[i] == "no-relay") {
        state.relays = false;
        continue;
      }
      const auto address = parse_address_range(words[i]);
      if (!address) {
        return wrong(fmt::format("'{}' is no address", words[i].substr(0, 60)));
      }
      state.addresses.push_back(*address);
    }
    if (state.addresses.empty() || state.addresses.size() > addresses_max) {
      return wrong(fmt::format("{} has {} addresses, 1 to {} are possible", state.name,
                               state.addresses.size(), addresses_max));
    }
    if (!known_.emplace(state.name, states_.size()).second) {
      return wrong(fmt::format("{} is there twice", state.name));
    }
    states_.push_back(std::move(state));
    return {};
  }

  Result<void> cable(const std::vector<std::string_view>& words) {
    if (words.size() < 3 || words.size() > 4) {
      return wrong("write: cable NAME NAME [MBIT_PER_SECOND]");
    }
    std::optional<uint32_t> speed = 0;
    if (words.size() == 4) {
      speed = number_of<uint32_t>(words[3], 100'000'000);
      if (!speed) {
        return wrong(fmt::format("'{}' is no number of Mbit/s", words[3].substr(0, 40)));
      }
    }
    size_t ends[2];
    for (size_t i = 0; i < 2; ++i) {
      const auto found = known_.find(std::string(words[i + 1].substr(0, node_name_max + 1)));
      if (found == known_.end()) {
        return wrong(fmt::format("no node '{}' above this line", words[i + 1].substr(0, 70)));
      }
      ends[i] = found->second;
    }
    if (ends[0] == ends[1]) {
      return wrong("a cable from a host to itself");
    }
    LinkState& one = states_[ends[0]];
    LinkState& other = states_[ends[1]];
    if (one.links.size() >= links_max || other.links.size() >= links_max) {
      return wrong(fmt::format("more than {} cables at one host", links_max));
    }
    const auto one_interface = static_cast<uint32_t>(one.links.size() + 1);
    const auto other_interface = static_cast<uint32_t>(other.links.size() + 1);
    one.links.push_back({other.origin, one_interface, other_interface, *speed});
    other.links.push_back({one.origin, other_interface, one_interface, *speed});
    return {};
  }

  std::string where_;
  size_t number_ = 0;
  std::vector<LinkState> states_;
  std::map<std::string, size_t> known_;
};

}  // namespace

Result<Topology> parse_topology_file(std::string_view text, std::string_view where) {
  if (text.size() > topology_file_bytes_max) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: more than {} bytes", where, topology_file_bytes_max));
  }
  FileReader reader(where);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (auto read = reader.line(text.substr(0, end)); !read) {
      return read.error();
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  Topology topology = Topology::make(reader.take());
  if (topology.nodes().empty()) {
    return fail(Errc::invalid_argument, fmt::format("{}: no node in it", where));
  }
  return topology;
}

Result<Topology> read_topology_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return fail(Errc::system, fmt::format("cannot read the topology file {}", file), errno);
  }
  std::string text(topology_file_bytes_max + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_topology_file(text, file);
}

std::optional<uint32_t> find_host(const Topology& topology,
                                  const std::vector<IpAddress>& addresses) {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < topology.nodes().size(); ++i) {
    const auto& theirs = topology.nodes()[i].addresses;
    const bool has = std::any_of(theirs.begin(), theirs.end(), [&](const IpAddress& one) {
      return std::any_of(addresses.begin(), addresses.end(), [&](const IpAddress& own) {
        return own.family == one.family && own.bytes == one.bytes;
      });
    });
    if (has) {
      found.push_back(i);
    }
  }
  if (found.size() > 1) {
    std::erase_if(found, [&](uint32_t node) { return topology.degree(node) == 0; });
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

std::optional<IpAddress> address_towards(const TopologyNode& from, const TopologyNode& to) {
  for (const IpAddress& theirs : to.addresses) {
    for (const IpAddress& own : from.addresses) {
      if (own.same_subnet(theirs)) {
        return theirs;
      }
    }
  }
  return to.addresses.empty() ? std::nullopt : std::optional(to.addresses.front());
}

}  // namespace nccl_ha::relay
