// Mistakes planted into the emulation itself, to see that a wrong emulation is noticed: the
// environment variable NHA_KERNEL_MISTAKE names one.
#pragma once

#include <cstdlib>
#include <string_view>

namespace nccl_ha::emulated {

enum class Mistake {
  none,
  element,     ///< the last element of each piece is not what was computed
  size,        ///< the proxy is told to send one element less
  early_tail,  ///< the proxy is told of a slot before it is filled
  flag,        ///< lines of protocol LL name another step
  early_flag,  ///< lines of protocol LL128 have their flags before their data
  root,        ///< the root of a tree leaves out what it has itself
};

inline bool mistaken(Mistake which) {
  static const Mistake planted = [] {
    const char* text = std::getenv("NHA_KERNEL_MISTAKE");
    const std::string_view name = text == nullptr ? "" : text;
    return name == "element"      ? Mistake::element
           : name == "size"       ? Mistake::size
           : name == "early_tail" ? Mistake::early_tail
           : name == "flag"       ? Mistake::flag
           : name == "early_flag" ? Mistake::early_flag
           : name == "root"       ? Mistake::root
                                  : Mistake::none;
  }();
  return which == planted;
}

}  // namespace nccl_ha::emulated
