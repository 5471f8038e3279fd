#include "runtime/base/port_range.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace nccl_ha {

Result<PortRange> parse_port_range(std::string_view text) {
  const size_t dash = text.find('-');
  const auto number = [](std::string_view part) -> std::optional<uint16_t> {
    uint16_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc{} && end == part.data() + part.size() ? std::optional(value)
                                                                    : std::nullopt;
  };
  const auto low = number(text.substr(0, dash));
  const auto high = dash == std::string_view::npos ? low : number(text.substr(dash + 1));
  if (!low || !high || *high < *low || (*low == 0 && *high != 0)) {
    return fail(Errc::invalid_argument,
                "use a port up to 65535, a range like 5000-5100 with the lower one first, or 0 for "
                "any");
  }
  return PortRange{*low, *high};
}

}  // namespace nccl_ha
