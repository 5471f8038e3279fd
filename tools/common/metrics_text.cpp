#include "tools/common/metrics_text.h"

#include <fmt/format.h>

#include <cmath>

namespace nccl_ha::tools {
namespace {

/// A line break would end the line, whoever the text is of; in a value of a label quotes end it.
std::string escaped_metric(std::string_view text, bool quoted) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (c == '"' && quoted)) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string metric_value(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  return fmt::format("{}", value);
}

}  // namespace

void MetricsText::counter(const std::string& name, std::string_view help, uint64_t value,
                          const Labels& labels) {
  add("counter", name, help, fmt::format("{}", value), labels);
}

void MetricsText::counter(const std::string& name, std::string_view help, double value,
                          const Labels& labels) {
  add("counter", name, help, metric_value(value), labels);
}

void MetricsText::gauge(const std::string& name, std::string_view help, double value,
                        const Labels& labels) {
  add("gauge", name, help, metric_value(value), labels);
}

void MetricsText::add(const char* type, const std::string& name, std::string_view help,
                      std::string_view value, const Labels& labels) {
  const std::string full = prefix_ + name;
  std::string& lines = families_[full];
  if (lines.empty()) {
    lines =
        fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", full, escaped_metric(help, false), type);
  }
  std::string all;
  for (const auto& [label, text] : labels) {
    all += fmt::format("{}{}=\"{}\"", all.empty() ? "" : ",", label, escaped_metric(text, true));
  }
  lines += all.empty() ? fmt::format("{} {}\n", full, value)
                       : fmt::format("{}{{{}}} {}\n", full, all, value);
}

std::string MetricsText::text() const {
  std::string all;
  for (const auto& [name, lines] : families_) {
    all += lines;
  }
  return all;
}

}  // namespace nccl_ha::tools
