#include "view/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace perigee::view {
namespace {

// Okabe and Ito's colours, which people with any kind of colour blindness distinguish.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#8c6bb1", "#999999"};
constexpr int kLeft = 64, kRight = 16, kTop = 30, kBottom = 40, kLegend = 18;

constexpr const char* kStyle = R"(<style>
svg { font: 12px system-ui, sans-serif; background: #fff; color: #222 }
text { fill: currentColor } .title { font-size: 14px; font-weight: 600 }
.grid { stroke: #8884; stroke-width: 1 } .line { fill: none; stroke-width: 1.5; stroke-linejoin: round }
@media (prefers-color-scheme: dark) { svg { background: #16181d; color: #ddd } }
</style>
)";

std::string escaped(std::string_view text) {
  std::string made;
  for (const char c : text) {
    switch (c) {
      case '&':
        made += "&amp;";
        break;
      case '<':
        made += "&lt;";
        break;
      case '>':
        made += "&gt;";
        break;
      case '"':
        made += "&quot;";
        break;
      default:
        made += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return made;
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  bool empty() const { return low > high; }
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Makes room above and below, and a width for a single value.
  void widen(bool logarithmic) {
    if (logarithmic) {
      const double factor = low == high ? 2 : std::pow(high / low, 0.04);
      low /= factor;
      high *= factor;
      return;
    }
    // Numbers that differ in their last bits only count as one.
    const bool one = high - low <= std::max(std::abs(low), std::abs(high)) * 1e-12;
    const double more = one ? std::max(std::abs(low) * 0.1, 1e-9) : (high - low) * 0.04;
    low -= more;
    high += more;
  }
};

// From a value to a pixel.
struct Scale {
  Range range;
  double begin = 0, end = 0;  // pixels of range.low and range.high
  bool logarithmic = false;

  double operator()(double value) const {
    const auto of = [&](double v) { return logarithmic ? std::log10(v) : v; };
    return begin + (end - begin) * (of(value) - of(range.low)) / (of(range.high) - of(range.low));
  }
};

bool is_drawn(const Chart& chart, double x, double y) {
  return std::isfinite(x) && std::isfinite(y) && (!chart.logarithmic || y > 0);
}

// Returns the line as a path, with a mark at each of few points. Of the points in one pixel's column it keeps the first, the least,
// the greatest and the last.
std::string path_of(const Chart& chart, const Line& line, const Scale& x, const Scale& y) {
  std::string path;
  char move = 'M';
  struct Column {
    int64_t pixel = -1;
    std::vector<std::pair<double, double>> points;  // in pixels
  } column;
  const auto flush = [&] {
    const auto& points = column.points;
    if (points.empty()) return;
    const auto [least, greatest] = std::minmax_element(
        points.begin(), points.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    std::vector<size_t> kept = {0, static_cast<size_t>(least - points.begin()),
                                static_cast<size_t>(greatest - points.begin()), points.size() - 1};
    std::ranges::sort(kept);
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    for (const auto k : kept) {
      path += fmt::format("{}{:.1f} {:.1f}", move, points[k].first, points[k].second);
      move = 'L';
    }
    column.points.clear();
  };
  for (size_t i = 0; i < line.x.size(); ++i) {
    if (!is_drawn(chart, line.x[i], line.y[i])) continue;
    const auto at = x(line.x[i]);
    const auto pixel = static_cast<int64_t>(at);
    if (pixel != column.pixel) flush();
    column.pixel = pixel;
    column.points.emplace_back(at, y(line.y[i]));
  }
  flush();
  return path;
}

std::string marks_of(const Chart& chart, const Line& line, const Scale& x, const Scale& y,
                     const char* colour) {
  constexpr int kMost = 40;
  std::string marks;
  int count = 0;
  for (size_t i = 0; i < line.x.size(); ++i) {
    if (!is_drawn(chart, line.x[i], line.y[i])) continue;
    if (++count > kMost) return "";
    marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n",
                         x(line.x[i]), y(line.y[i]), colour);
  }
  return marks;
}

std::string text(double x, double y, const char* anchor, std::string_view content,
                 const char* kind = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, kind, escaped(content));
}

std::string grid(double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x1, y1,
      x2, y2);
}

// Returns the names and colours of the lines in rows of at most the width, and sets their number.
std::string legend(const Chart& chart, double top, int width, int& rows) {
  std::string made;
  double x = kLeft;
  rows = 1;
  for (size_t l = 0; l < chart.lines.size(); ++l) {
    const auto& label = chart.lines[l].label;
    const double needed = 30 + 7.0 * static_cast<double>(label.size());
    if (x > kLeft && x + needed > width - kRight) {
      x = kLeft;
      ++rows;
    }
    const double y = top + kLegend * (rows - 0.5);
    made += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"M{:.1f} {:.1f}h16\"/>\n",
                        kColours[l % kColours.size()], x, y);
    made += text(x + 20, y + 4, "start", label);
    x += needed;
  }
  return made;
}

// Draws a chart from `top` on, and returns where it ends.
double draw(std::string& svg, const Chart& chart, Size size, double top) {
  svg += text(kLeft, top + 18, "start", chart.title, " class=\"title\"");
  int rows = 0;
  if (chart.lines.size() > 1) {
    svg += legend(chart, top + kTop - 6, size.width, rows);
  }
  const double begin = top + kTop + kLegend * rows, end = top + size.height - kBottom;
  Range in_x, in_y;
  for (const auto& line : chart.lines) {
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (!is_drawn(chart, line.x[i], line.y[i])) continue;
      in_x.add(line.x[i]);
      in_y.add(line.y[i]);
    }
  }
  if (in_x.empty()) {
    svg += text(size.width / 2.0, (begin + end) / 2, "middle", "no data");
    return top + size.height;
  }
  if (in_x.low == in_x.high) in_x.widen(false);
  in_y.widen(chart.logarithmic);
  const Scale x{in_x, kLeft, static_cast<double>(size.width - kRight)};
  const Scale y{in_y, end, begin, chart.logarithmic};
  for (const double value : ticks(in_y.low, in_y.high, 5, chart.logarithmic)) {
    svg += grid(kLeft, y(value), size.width - kRight, y(value));
    svg += text(kLeft - 8, y(value) + 4, "end", short_number(value));
  }
  for (const double value : ticks(in_x.low, in_x.high, 8)) {
    svg += grid(x(value), begin, x(value), end);
    svg += text(x(value), end + 16, "middle", short_number(value));
  }
  svg += text((kLeft + size.width - kRight) / 2.0, end + 32, "middle", chart.x_label);
  for (size_t l = 0; l < chart.lines.size(); ++l) {
    const auto* colour = kColours[l % kColours.size()];
    svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"/>\n", colour,
                       path_of(chart, chart.lines[l], x, y));
    svg += marks_of(chart, chart.lines[l], x, y, colour);
  }
  return top + size.height;
}

}  // namespace

std::vector<double> ticks(double low, double high, int count, bool logarithmic) {
  std::vector<double> values;
  if (logarithmic) {
    const int first = static_cast<int>(std::floor(std::log10(low)));
    const int last = static_cast<int>(std::ceil(std::log10(high)));
    const int step = std::max(1, (last - first) / std::max(1, count));
    const std::vector<double> factors = last - first > 2 ? std::vector<double>{1}
                                                         : std::vector<double>{1, 2, 5};
    for (int power = first; power <= last; power += step) {
      for (const double factor : factors) {
        const double value = factor * std::pow(10, power);
        if (value >= low && value <= high) values.push_back(value);
      }
    }
    if (values.size() >= 2) return values;
    values.clear();  // less than a factor of two
  }
  const double rough = (high - low) / std::max(1, count);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough / power > 5   ? 10
                               : rough / power > 2 ? 5
                               : rough / power > 1 ? 2
                                                   : 1);
  const double first = std::ceil(low / step - 1e-9);
  if (!(std::abs(first) < 1e15)) return values;  // its successors would not differ
  for (auto k = first; k * step <= high + step * 1e-9; ++k) {
    values.push_back(k == 0 ? 0 : k * step);
  }
  return values;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  for (const auto& [unit, letter] : {std::pair(1e12, "T"), {1e9, "G"}, {1e6, "M"}, {1e4, "k"}}) {
    if (size < unit || size >= 1e15) continue;
    return fmt::format("{:.6g}{}", value / (unit == 1e4 ? 1e3 : unit), letter);
  }
  return fmt::format("{:.6g}", value);
}

std::string to_svg(const std::vector<Chart>& charts, Size size) {
  std::string content;
  double height = 0;
  for (const auto& chart : charts) height = draw(content, chart, size, height);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 "
             "{0} {1}\">\n",
             size.width, height) +
         kStyle + content + "</svg>\n";
}

}  // namespace perigee::view
