// Charts of lines, as SVG.
#pragma once

#include <string>
#include <vector>

namespace perigee::view {

struct Line {
  std::string label;
  std::vector<double> x, y;  // of one length; points that are not finite are left out
};

struct Chart {
  std::string title, x_label;
  std::vector<Line> lines;
  bool logarithmic = false;  // y; values that are not above 0 are left out
};

struct Size {
  int width = 800, height = 320;  // of each chart, in pixels
};

// Returns one SVG document with the charts below each other. Its colours follow the reader's light
// or dark scheme. Lines of more points than pixels keep the least and the greatest value of each
// pixel. A chart without a finite point says so.
std::string to_svg(const std::vector<Chart>& charts, Size size = {});

// Returns round numbers from `low` to `high`, about `count` of them: 0, 20, 40; with `logarithmic`
// powers of ten, or their multiples 2 and 5 where these are few. `low` < `high`.
std::vector<double> ticks(double low, double high, int count, bool logarithmic = false);

// Returns a number as ticks show it: "0.25", "3e-05", "2.5M".
std::string short_number(double value);

}  // namespace perigee::view
