// Metrics in Prometheus's text format, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nccl_ha::tools {

class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// Each name begins with it.
  explicit MetricsText(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Only grows, until what counts begins anew.  By the format's custom `name` ends in _total.
  void counter(const std::string& name, std::string_view help, uint64_t value,
               const Labels& labels = {});
  void counter(const std::string& name, std::string_view help, double value,
               const Labels& labels = {});
  void gauge(const std::string& name, std::string_view help, double value,
             const Labels& labels = {});

  /// By name; of one name in the order in which they were added, as scrapers want them together.
  std::string text() const;

 private:
  void add(const char* type, const std::string& name, std::string_view help, std::string_view value,
           const Labels& labels);

  const std::string prefix_;
  std::map<std::string, std::string> families_;
};

}  // namespace nccl_ha::tools
