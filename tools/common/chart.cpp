#include "tools/common/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

namespace nccl_ha::tools {
namespace {

constexpr double chart_width = 860;
constexpr double chart_height = 340;
constexpr double left_edge = 80;
constexpr double right_edge = 20;
constexpr double top_edge = 40;
constexpr double bottom_edge = 50;
constexpr double legend_row = 18;
/// Texts at marks: how wide a letter is at most, and how many rows there are.
constexpr double mark_letter = 6.5;
constexpr double mark_gap = 3;
constexpr double mark_row = 13;
constexpr size_t mark_rows = 4;
/// Told apart by the color-blind (Okabe and Ito, 2008).
constexpr std::array colors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                               "#e69f00", "#56b4e9", "#999999", "#b8a900"};

std::string escaped_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&' || c == '"') {
      out += fmt::format("&#{};", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string size_tick(double value) {
  constexpr std::array units = {"", "K", "M", "G", "T"};
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g}{}", value, units[unit]);
}

/// One axis: from values to places in the picture.
class Scale {
 public:
  Scale(const ChartAxis& axis, double from, double to) : axis_(axis), from_(from), to_(to) {}

  void see(double value) {
    if (std::isfinite(value) && (!axis_.logarithmic || value > 0)) {
      least_ = std::min(least_, value);
      most_ = std::max(most_, value);
    }
  }
  /// `vertical`: the axis begins and ends at a tick, so that no line lies on the frame.
  void settle(bool vertical) {
    if (least_ > most_) {
      least_ = axis_.logarithmic ? 1 : 0;
      most_ = least_ + 1;
    }
    if (!axis_.logarithmic && vertical && axis_.from_zero) {
      least_ = std::min(least_, 0.0);
    }
    if (most_ <= least_) {
      most_ = axis_.logarithmic ? least_ * 2 : least_ + 1;
    }
    if (vertical && axis_.logarithmic) {
      const auto all = round_numbers(least_, most_);
      least_ = all.front();
      most_ = all.back();
    } else if (vertical) {
      const double step = linear_step();
      least_ = std::floor(least_ / step + 1e-9) * step;
      most_ = std::ceil(most_ / step - 1e-9) * step;
    }
  }
  double place(double value) const {
    const double part = axis_.logarithmic ? std::log2(value / least_) / std::log2(most_ / least_)
                                          : (value - least_) / (most_ - least_);
    return from_ + part * (to_ - from_);
  }
  bool shows(double value) const {
    return std::isfinite(value) && (!axis_.logarithmic || value > 0);
  }
  std::vector<double> ticks() const {
    std::vector<double> all;
    if (axis_.logarithmic && !axis_.bytes) {
      return round_numbers(least_, most_);
    }
    if (axis_.logarithmic) {
      const double octaves = std::log2(most_ / least_);
      const double step = std::max(1.0, std::ceil(octaves / 10));
      for (double power = std::ceil(std::log2(least_)); power <= std::log2(most_) + 1e-9;
           power += step) {
        all.push_back(std::exp2(power));
      }
      return all;
    }
    const double step = linear_step();
    for (double tick = std::ceil(least_ / step) * step; tick <= most_ + step / 1000; tick += step) {
      all.push_back(std::abs(tick) < step / 1000 ? 0 : tick);
    }
    return all;
  }
  std::string label(double value) const {
    return axis_.bytes ? size_tick(value) : fmt::format("{:.7g}", value);
  }

 private:
  double linear_step() const {
    const double rough = (most_ - least_) / 6;
    const double base = std::pow(10.0, std::floor(std::log10(rough)));
    return rough / base < 1.5 ? base
           : rough / base < 3 ? 2 * base
           : rough / base < 7 ? 5 * base
                              : 10 * base;
  }
  /// 1, 2, 5 and 10 of each power of ten, or only the powers where those are many: from the last
  /// that is not above `least` to the first that is not below `most`.
  static std::vector<double> round_numbers(double least, double most) {
    constexpr double many_decades = 3;
    const bool all_of_them = std::log10(most / least) < many_decades;
    std::vector<double> numbers;
    for (double power = std::pow(10.0, std::floor(std::log10(least))); std::isfinite(power);
         power *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        if (factor > 1 && !all_of_them) {
          continue;
        }
        const double number = factor * power;
        if (number <= least * (1 + 1e-9)) {
          numbers.assign(1, number);
        } else {
          numbers.push_back(number);
        }
        if (number >= most * (1 - 1e-9) && numbers.size() > 1) {
          return numbers;
        }
      }
    }
    return {least, most};
  }

  const ChartAxis axis_;
  const double from_;
  const double to_;
  double least_ = std::numeric_limits<double>::infinity();
  double most_ = -std::numeric_limits<double>::infinity();
};

std::string draw_text(double x, double y, const char* anchor, const std::string& text,
                      const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, escaped_text(text));
}

double height_of(const Chart& chart) {
  const auto named = static_cast<size_t>(std::ranges::count_if(
      chart.series, [](const ChartSeries& one) { return !one.name.empty(); }));
  const size_t rows = (named + 1) / 2;
  return chart_height + legend_row * static_cast<double>(rows);
}

std::string draw_axes(const Chart& chart, const Scale& x, const Scale& y) {
  const double bottom = chart_height - bottom_edge;
  std::string out = draw_text(left_edge, top_edge - 18, "start", chart.title, " class=\"title\"");
  for (const double tick : x.ticks()) {
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", x.place(tick),
                       top_edge, bottom);
    out += draw_text(x.place(tick), bottom + 16, "middle", x.label(tick));
  }
  for (const double tick : y.ticks()) {
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left_edge,
                       y.place(tick), chart_width - right_edge);
    out += draw_text(left_edge - 6, y.place(tick) + 4, "end", y.label(tick));
  }
  out += draw_text((left_edge + chart_width) / 2, bottom + 34, "middle", chart.x.title);
  out += draw_text(
      0, 0, "middle", chart.y.title,
      fmt::format(" transform=\"translate(18 {:.1f}) rotate(-90)\"", (top_edge + bottom) / 2)
          .c_str());
  return out;
}

/// `legend`: its place there.
std::string draw_series(const ChartSeries& series, size_t color_number, size_t legend,
                        const Scale& x, const Scale& y) {
  const char* color = colors[color_number % colors.size()];
  std::string line;
  std::string dots;
  for (const auto& [at, value] : series.points) {
    if (!x.shows(at) || !y.shows(value)) {
      continue;
    }
    line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", x.place(at), y.place(value));
    if (series.points.size() <= 40) {
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n",
                          x.place(at), y.place(value), color);
    }
  }
  const char* dash = series.dashed ? " stroke-dasharray=\"6 4\"" : "";
  std::string out = fmt::format("<path class=\"line\" d=\"{}\" stroke=\"{}\"{}/>\n{}",
                                line.empty() ? "M0 0" : line, color, dash, dots);
  if (!series.name.empty()) {
    const double row = chart_height - 6 + legend_row * static_cast<double>(legend / 2);
    const double column = left_edge + (legend % 2 == 0 ? 0 : (chart_width - left_edge) / 2);
    out += fmt::format("<path class=\"line\" d=\"M{:.1f} {:.1f}h24\" stroke=\"{}\"{}/>\n", column,
                       row, color, dash);
    out += draw_text(column + 30, row + 4, "start", series.name);
  }
  return out;
}

std::string draw_chart(const Chart& chart) {
  Scale x(chart.x, left_edge, chart_width - right_edge);
  Scale y(chart.y, chart_height - bottom_edge, top_edge);
  for (const ChartSeries& series : chart.series) {
    for (const auto& [at, value] : series.points) {
      x.see(at);
      y.see(value);
    }
  }
  x.settle(false);
  y.settle(true);
  std::string out = draw_axes(chart, x, y);
  std::vector<double> ends_of_rows;  ///< of marks, from the top: where the last text ends
  for (const ChartMark& mark : chart.marks) {
    if (!x.shows(mark.x)) {
      continue;
    }
    const double at = std::clamp(x.place(mark.x), left_edge, chart_width - right_edge);
    const double room = mark_letter * static_cast<double>(mark.text.size()) + 2 * mark_gap;
    const bool fits = at + room <= chart_width - right_edge;
    const double from = fits ? at : at - room;
    // The first row that is free there; the last one may be crowded.
    size_t row = 0;
    while (row + 1 < mark_rows && row < ends_of_rows.size() && ends_of_rows[row] > from) {
      ++row;
    }
    ends_of_rows.resize(std::max(ends_of_rows.size(), row + 1), 0);
    ends_of_rows[row] = from + room;
    out += fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", at, top_edge,
                       chart_height - bottom_edge);
    out += draw_text(fits ? at + mark_gap : at - mark_gap,
                     top_edge + 10 + mark_row * static_cast<double>(row), fits ? "start" : "end",
                     mark.text, " class=\"mark-text\"");
  }
  std::vector<size_t> colors_of;
  size_t own_colors = 0;
  size_t legend = 0;
  for (const ChartSeries& series : chart.series) {
    const auto like = static_cast<size_t>(series.same_color_as);
    colors_of.push_back(series.same_color_as >= 0 && like < colors_of.size() ? colors_of[like]
                                                                             : own_colors++);
    out += draw_series(series, colors_of.back(), legend, x, y);
    legend += series.name.empty() ? 0 : 1;
  }
  return out;
}

}  // namespace

std::string svg_of(const std::vector<Chart>& charts) {
  double height = 0;
  std::string body;
  for (const Chart& chart : charts) {
    body +=
        fmt::format("<g transform=\"translate(0 {:.1f})\">\n{}</g>\n", height, draw_chart(chart));
    height += height_of(chart);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n"
      "<style>rect{{fill:#fff}}text{{font:12px sans-serif;fill:#222}}.title{{font-size:15px}}"
      ".grid{{stroke:#ddd;fill:none}}.line{{fill:none;stroke-width:2}}"
      ".mark{{stroke:#b00;stroke-dasharray:3 3;fill:none}}.mark-text{{fill:#b00;font-size:11px}}"
      "@media (prefers-color-scheme:dark){{rect{{fill:#16181d}}text{{fill:#ddd}}"
      ".grid{{stroke:#333}}.mark{{stroke:#f66}}.mark-text{{fill:#f66}}}}</style>\n"
      "<rect width=\"100%\" height=\"100%\"/>\n{2}</svg>\n",
      chart_width, height, body);
}

}  // namespace nccl_ha::tools
