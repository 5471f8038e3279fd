// Line charts as SVG, with nothing to load and readable on a light and a dark page.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nccl_ha::tools {

struct ChartSeries {
  std::string name;                               ///< empty: it is not in the legend
  std::vector<std::pair<double, double>> points;  ///< by x
  bool dashed = false;
  int same_color_as = -1;  ///< a series before it; -1: it has a color of its own
};
/// A vertical line with a word at it.
struct ChartMark {
  double x = 0;
  std::string text;
};
struct ChartAxis {
  std::string title;
  bool logarithmic = false;  ///< all values above 0
  bool bytes = false;        ///< values are sizes: 4K, 1M
  bool from_zero = true;     ///< y, linear: 0 is in the picture
};
struct Chart {
  std::string title;
  ChartAxis x;
  ChartAxis y;
  std::vector<ChartSeries> series;
  std::vector<ChartMark> marks;
};

/// Charts below each other in one picture.  Values that are not finite are left out.
std::string svg_of(const std::vector<Chart>& charts);

}  // namespace nccl_ha::tools
