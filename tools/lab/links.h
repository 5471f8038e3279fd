// The state of a lab's links, and what whoever builds a lab does for them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::tools::lab {

/// Loss is given in parts of this.
inline constexpr uint32_t loss_whole = 1000000;

/// What happens to the frames that go one way over a link.
struct Direction {
  bool blocked = false;          ///< all frames vanish; the carrier stays
  uint32_t loss = 0;             ///< lost frames out of loss_whole, at random
  uint64_t bits_per_second = 0;  ///< 0: as fast as the machine is
  bool operator==(const Direction&) const = default;
};

struct LinkState {
  bool carrier = true;  ///< false: the cable is pulled, and both ends notice
  uint32_t mtu = 0;     ///< larger IP packets vanish, as in a switch set up wrongly; 0: none do
  std::array<Direction, 2> direction;
  bool operator==(const LinkState&) const = default;
};

/// What went one way over a link so far.
struct DirectionCounters {
  uint64_t frames = 0;
  uint64_t bytes = 0;
  uint64_t dropped = 0;  ///< frames lost on purpose
};
using LinkCounters = std::array<DirectionCounters, 2>;

/// What carries a lab's frames.  All calls come from the lab's own thread.
class Cables {
 public:
  virtual ~Cables() = default;
  /// Makes a link so, at once.
  virtual Result<void> set_link(size_t link, const LinkState& state) = 0;
  virtual Result<std::vector<LinkCounters>> read_counters() = 0;
};

}  // namespace nccl_ha::tools::lab
