#include <gtest/gtest.h>

#include <limits>

#include "tools/common/metrics_text.h"

namespace nccl_ha::tools {
namespace {

TEST(MetricsText, SeriesOfANameFollowEachOtherUnderOneHead) {
  MetricsText metrics("x_");
  metrics.counter("b_total", "Of b", uint64_t{18446744073709551615U}, {{"rail", "0"}});
  metrics.gauge("a", "Of a", 0.25);
  metrics.counter("b_total", "Of b", 0.5, {{"rail", "1"}, {"host", "h"}});
  EXPECT_EQ(metrics.text(),
            "# HELP x_a Of a\n"
            "# TYPE x_a gauge\n"
            "x_a 0.25\n"
            "# HELP x_b_total Of b\n"
            "# TYPE x_b_total counter\n"
            "x_b_total{rail=\"0\"} 18446744073709551615\n"
            "x_b_total{rail=\"1\",host=\"h\"} 0.5\n");
  EXPECT_EQ(MetricsText("x_").text(), "");
}

TEST(MetricsText, NoTextEndsItsLineOrItsQuotes) {
  MetricsText metrics("");
  metrics.gauge("a", "one\ntwo \\ \"three\"", 1, {{"l", "q\"b\\n\nx"}});
  EXPECT_EQ(metrics.text(),
            "# HELP a one\\ntwo \\\\ \"three\"\n"
            "# TYPE a gauge\n"
            "a{l=\"q\\\"b\\\\n\\nx\"} 1\n");
}

TEST(MetricsText, NumbersThatAreNoneHaveTheFormatsNames) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  MetricsText metrics("");
  metrics.gauge("a", "h", infinite);
  metrics.gauge("a", "h", -infinite);
  metrics.gauge("a", "h", std::numeric_limits<double>::quiet_NaN());
  metrics.gauge("a", "h", 1e21);
  EXPECT_EQ(metrics.text(), "# HELP a h\n# TYPE a gauge\na +Inf\na -Inf\na NaN\na 1e+21\n");
}

}  // namespace
}  // namespace nccl_ha::tools
