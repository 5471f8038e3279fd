#include "runtime/base/fault_plan.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace nccl_ha {
namespace {

Result<double> parse_probability(std::string_view name, std::string_view value) {
  // std::from_chars for double exists in this compiler, but accepts "inf" and "nan".
  double result = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size() || !(result >= 0) ||
      !(result <= 1)) {
    return fail(Errc::invalid_argument,
                fmt::format("HA_NCCL_DGRAM_FAULTS: {}={} is not a probability between 0 and 1",
                            name, value));
  }
  return result;
}

}  // namespace

Result<FaultPlan> parse_fault_plan(std::string_view text) {
  FaultPlan plan;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : part.substr(equals + 1);
    if (name == "seed") {
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), plan.seed);
      if (error != std::errc{} || end != value.data() + value.size()) {
        return fail(Errc::invalid_argument,
                    fmt::format("HA_NCCL_DGRAM_FAULTS: seed={} is not a whole number", value));
      }
      continue;
    }
    double* target = name == "drop"       ? &plan.drop
                     : name == "dup"      ? &plan.duplicate
                     : name == "reorder"  ? &plan.reorder
                     : name == "ack_loss" ? &plan.ack_loss
                                          : nullptr;
    if (target == nullptr) {
      return fail(Errc::invalid_argument,
                  fmt::format("HA_NCCL_DGRAM_FAULTS: '{}' is not known; use drop=, dup=, reorder=, "
                              "ack_loss= (probabilities) and seed=, separated by commas",
                              part));
    }
    auto probability = parse_probability(name, value);
    if (!probability) {
      return probability.error();
    }
    *target = *probability;
  }
  return plan;
}

}  // namespace nccl_ha
