#include "ha/shadow.h"

#include <algorithm>
#include <tuple>

namespace nccl_ha::ha {
namespace {

/// Takes the first component off, slashes and all; empty at the end.
std::string_view next_component(std::string_view& path) {
  const size_t begin = std::min(path.find_first_not_of('/'), path.size());
  path.remove_prefix(begin);
  const size_t end = std::min(path.find('/'), path.size());
  const std::string_view component = path.substr(0, end);
  path.remove_prefix(end);
  return component;
}

size_t components(std::string_view path) {
  size_t count = 0;
  while (!next_component(path).empty()) {
    ++count;
  }
  return count;
}

bool same_subnet(const Rail& one, const Rail& other) {
  if (one.family != other.family || one.family == 0) {
    return one.family == other.family;
  }
  const size_t bits =
      std::min<size_t>({one.prefix_len, other.prefix_len, one.family == 4 ? 32U : 128U});
  for (size_t bit = 0; bit < bits; ++bit) {
    const auto mask = static_cast<uint8_t>(0x80U >> (bit % 8));
    if (((one.address[bit / 8] ^ other.address[bit / 8]) & mask) != 0) {
      return false;
    }
  }
  return true;
}

/// fe80::/10 (RFC 4291, 2.5.6) and 169.254.0.0/16 (RFC 3927).
bool link_local(const Rail& rail) {
  return rail.family == 6 ? rail.address[0] == 0xFE && (rail.address[1] & 0xC0U) == 0x80
                          : rail.family == 4 && rail.address[0] == 169 && rail.address[1] == 254;
}

bool same_address(const Rail& one, const Rail& other) {
  return one.family != 0 && one.family == other.family && one.address == other.address;
}

bool has_address(std::span<const Rail> rails, const Rail& wanted) {
  return std::ranges::any_of(rails, [&](const Rail& rail) { return same_address(rail, wanted); });
}

/// Each address of either list is one of the other.
bool one_host(std::span<const Rail> local, std::span<const Rail> remote) {
  const auto in = [](std::span<const Rail> rails) {
    return [rails](const Rail& one) { return one.family == 0 || has_address(rails, one); };
  };
  return std::ranges::all_of(local, in(remote)) && std::ranges::all_of(remote, in(local));
}

/// How likely packets get from one end to the other: the lowest is best.
unsigned reach_of(const Rail& mine, const Rail& theirs) {
  return link_local(mine) || link_local(theirs) ? 2 : same_subnet(mine, theirs) ? 0 : 1;
}

const Rail* primary_of(std::span<const Rail> rails) {
  const auto found =
      std::find_if(rails.begin(), rails.end(), [](const Rail& rail) { return rail.primary; });
  return found == rails.end() ? nullptr : &*found;
}

bool leads_anywhere(const Rail& mine, const Rail& theirs, const Rail* here) {
  return here != nullptr && mine.kind != here->kind && mine.kind == theirs.kind &&
         mine.family == 0 && theirs.family == 0;
}

/// What makes a pair better than others before all else: the lowest is best.
unsigned rank_of(const Rail& mine, const Rail& theirs, const Rail* here) {
  const bool other_kind = here != nullptr && mine.kind != here->kind;
  return !other_kind ? 0 : leads_anywhere(mine, theirs, here) ? 1 : 2;
}

/// How many places after the primary it comes, going round.
uint16_t steps_after(const Rail* primary, const Rail& rail) {
  return static_cast<uint16_t>(rail.number - (primary == nullptr ? 0 : primary->number));
}

}  // namespace

uint8_t pci_distance(std::string_view one, std::string_view other) {
  if (one.empty() || other.empty()) {
    return pci_far;
  }
  const size_t total = components(one) + components(other);
  size_t common = 0;
  for (std::string_view a = next_component(one), b = next_component(other); !a.empty() && a == b;
       a = next_component(one), b = next_component(other)) {
    ++common;
  }
  // Root complexes of one host share /sys/devices and nothing else.
  constexpr size_t host_components = 2;
  return common <= host_components && total != 2 * common
             ? pci_far
             : static_cast<uint8_t>(std::min<size_t>(total - 2 * common, pci_far - 1));
}

bool first_is_over(std::span<const Rail> rails) {
  const Rail* first = primary_of(rails);
  return first != nullptr && std::ranges::any_of(rails, [&](const Rail& one) {
           const bool same = one.distance == 0 || same_address(one, *first);
           return one.returned() && !one.primary && one.kind == first->kind && same;
         });
}

std::vector<RailPair> rank_shadows(std::span<const Rail> local, std::span<const Rail> remote) {
  const Rail* here = primary_of(local);
  const Rail* there = primary_of(remote);
  const bool anywhere = std::any_of(local.begin(), local.end(), [&](const Rail& mine) {
    return std::any_of(remote.begin(), remote.end(),
                       [&](const Rail& theirs) { return leads_anywhere(mine, theirs, here); });
  });
  const bool apart = !one_host(local, remote);
  const bool over = first_is_over(local) || first_is_over(remote);
  using Key =
      std::tuple<bool, unsigned, unsigned, unsigned, bool, uint16_t, uint16_t, size_t, size_t>;
  std::vector<std::pair<Key, RailPair>> ranked;
  for (size_t l = 0; l < local.size(); ++l) {
    for (size_t r = 0; r < remote.size(); ++r) {
      const Rail& mine = local[l];
      const Rail& theirs = remote[r];
      const bool old_here = here != nullptr && mine.number == here->number;
      const bool old_there = there != nullptr && theirs.number == there->number;
      if (mine.kind != theirs.kind || mine.family != theirs.family || (old_here && old_there) ||
          (apart && (has_address(remote, mine) || has_address(local, theirs)))) {
        continue;
      }
      const bool own_kind = here == nullptr || mine.kind == here->kind;
      // Networks of link-local addresses look alike on each cable.
      if (anywhere && own_kind && (!same_subnet(mine, theirs) || link_local(mine))) {
        continue;
      }
      const bool same_switch = here != nullptr && same_subnet(mine, *here);
      ranked.emplace_back(
          Key{!over && (old_here || old_there), rank_of(mine, theirs, here), reach_of(mine, theirs),
              unsigned{mine.distance} + theirs.distance, same_switch, steps_after(here, mine),
              steps_after(there, theirs), l, r},
          RailPair{l, r, nic_of(local, l), nic_of(remote, r)});
    }
  }
  std::sort(ranked.begin(), ranked.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RailPair> pairs;
  pairs.reserve(ranked.size());
  for (const auto& [key, pair] : ranked) {
    pairs.push_back(pair);
  }
  return pairs;
}

}  // namespace nccl_ha::ha
