// Charts, and what nccl-ha perf draws of its measurements.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "tools/common/chart.h"
#include "tools/perf/pictures.h"

namespace nccl_ha::tools {
namespace {

/// The group of each match.
std::vector<std::string> all_of(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) {
    found.push_back((*at)[1]);
  }
  return found;
}

/// What stands beside the y axis.
std::vector<std::string> y_labels(const std::string& svg) {
  return all_of(svg, "text-anchor=\"end\">([^<]*)<");
}

Chart chart_of(std::vector<double> values, bool logarithmic, bool from_zero = true) {
  Chart chart{"t", {"bytes", true, true}, {"y", logarithmic, false, from_zero}, {}, {}};
  ChartSeries series{"one", {}};
  for (size_t i = 0; i < values.size(); ++i) {
    series.points.emplace_back(static_cast<double>(1024U << i), values[i]);
  }
  chart.series.push_back(std::move(series));
  return chart;
}

TEST(Chart, ItsAxisBeginsAndEndsAtATick) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(y_labels(svg_of({chart_of({0.31, 0.71}, false)})),
            (Labels{"0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8"}));
  EXPECT_EQ(y_labels(svg_of({chart_of({590, 6392}, true)})),
            (Labels{"500", "1000", "2000", "5000", "10000"}));
  EXPECT_EQ(y_labels(svg_of({chart_of({3, 40'000}, true)})),
            (Labels{"1", "10", "100", "1000", "10000", "100000"}));
  EXPECT_EQ(y_labels(svg_of({chart_of({5, 5}, true)})), (Labels{"5", "10"}));
  const Labels ratios = y_labels(svg_of({chart_of({0.96, 1.04}, false, false)}));
  EXPECT_EQ(ratios.front(), "0.96");
  EXPECT_EQ(ratios.back(), "1.04");
}

TEST(Chart, TextsAtMarksAreWholeAndStandBesideEachOther) {
  Chart chart = chart_of({1, 2, 3, 4}, false);
  chart.marks = {{1024, "failover"}, {1030, "path back"}, {8192, "failover"}};
  const std::string svg = svg_of({chart});
  const std::string of_mark = "[^>]*class=\"mark-text\"";
  const auto x = all_of(svg, "<text x=\"([0-9.]*)\"" + of_mark);
  const auto y = all_of(svg, "<text x=\"[0-9.]*\" y=\"([0-9.]*)\"" + of_mark);
  const auto anchors = all_of(svg, "text-anchor=\"([a-z]*)\" class=\"mark-text\"");
  ASSERT_EQ(anchors, (std::vector<std::string>{"start", "start", "end"}));
  ASSERT_EQ(x.size(), 3U);
  ASSERT_EQ(y.size(), 3U);
  EXPECT_LT(std::stod(x[2]), 860) << "the picture ends there";
  EXPECT_LT(std::stod(y[0]), std::stod(y[1])) << "the second would lie over the first";
  EXPECT_EQ(y[0], y[2]) << "there is room";
}

TEST(Chart, SeriesThatBelongTogetherHaveOneColorAndOneNameInTheLegend) {
  Chart chart = chart_of({1, 2}, false);
  chart.series.push_back({"other", chart.series[0].points, false});
  chart.series.push_back({"its tail", chart.series[0].points, true, 1});
  chart.series.push_back({"", chart.series[0].points, true, 1});
  const std::string svg = svg_of({chart});
  const auto lines = all_of(svg, "class=\"line\" d=\"[^\"]*\" stroke=\"([^\"]*)\"");
  // Each has a line, and one in the legend where it has a name.
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_NE(lines[0], lines[2]);
  EXPECT_EQ(lines[2], lines[4]);
  EXPECT_EQ(lines[2], lines[6]);
}

TEST(PerfPictures, TheSamePluginTwiceIsToldApart) {
  PerfOptions options;
  Row row;
  row.bytes = 4096;
  row.count = 1024;
  row.cells.resize(2);
  for (Cell& cell : row.cells) {
    cell.rounds.resize(1);
    cell.rounds[0].time_s = 1e-3;
  }
  std::vector<PluginInfo> plugins(2);
  plugins[0].name = plugins[1].name = "HA";
  plugins[1].settings = "A=1 B=\"x\"";
  for (const OpKind op : {OpKind::all_reduce, OpKind::latency}) {
    options.op = op;
    const std::string csv = perf_csv(options, 2, {row}, plugins);
    EXPECT_NE(csv.find(",\"A: HA\",4096,"), std::string::npos) << csv;
    EXPECT_NE(csv.find(",\"B: HA, A=1 B=\"\"x\"\"\",4096,"), std::string::npos) << csv;
    const std::string svg = perf_svg(options, 2, {row}, plugins);
    EXPECT_NE(svg.find(">A: HA"), std::string::npos);
    EXPECT_NE(svg.find(">B: HA, A=1 B="), std::string::npos);
  }
  plugins.pop_back();
  EXPECT_EQ(plugin_label(plugins, 0), "HA");
}

}  // namespace
}  // namespace nccl_ha::tools
