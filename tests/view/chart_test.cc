// Charts as SVG: ticks, what is drawn, and how much of it.
#include "view/chart.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace perigee::view;
using Catch::Contains;

namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

Line line(int points) {
  Line made{"loss", {}, {}};
  for (int i = 0; i < points; ++i) {
    made.x.push_back(i);
    made.y.push_back(i == points / 2 ? 50 : 1 + std::sin(i));
  }
  return made;
}

}  // namespace

TEST_CASE("ticks are round numbers within the range") {
  CHECK(ticks(0, 100, 5) == std::vector<double>{0, 20, 40, 60, 80, 100});
  CHECK(ticks(-1, 1, 4) == std::vector<double>{-1, -0.5, 0, 0.5, 1});
  CHECK(ticks(3, 9, 3) == std::vector<double>{4, 6, 8});
  CHECK(ticks(1e-5, 1e-1, 5, true).size() == 5);
  CHECK(ticks(1, 30, 5, true) == std::vector<double>{1, 2, 5, 10, 20});
  CHECK(ticks(4.1, 4.4, 3, true).size() >= 2);  // no power of ten, nor its multiples
  CHECK(ticks(1, std::nextafter(1, 2), 5).size() <= 1);
}

TEST_CASE("numbers of ticks are short") {
  CHECK(short_number(0.25) == "0.25");
  CHECK(short_number(3e-5) == "3e-05");
  CHECK(short_number(8000) == "8000");
  CHECK(short_number(25000) == "25k");
  CHECK(short_number(2.5e6) == "2.5M");
  CHECK(short_number(-4e9) == "-4G");
}

TEST_CASE("a chart has its lines, labels and ticks, and text is escaped") {
  const auto svg = to_svg(
      {{.title = "a < b & \"c\"", .x_label = "step", .lines = {line(5), line(60)}}});
  CHECK_THAT(svg, Contains("a &lt; b &amp; &quot;c&quot;") && Contains(">step<"));
  CHECK(count(svg, "<path class=\"line\"") == 4);  // two lines, two in the legend
  CHECK(count(svg, "<circle") == 5);               // only few points are marked
  CHECK(count(svg, "nan") + count(svg, "inf") == 0);
}

TEST_CASE("a line of more points than pixels keeps the outliers") {
  const auto small = to_svg({{.title = "t", .x_label = "step", .lines = {line(1000)}}});
  const auto large = to_svg({{.title = "t", .x_label = "step", .lines = {line(1'000'000)}}});
  CHECK(large.size() < 100'000);
  CHECK(large.size() < 3 * small.size());
  // The one point of 50 is the highest of the chart: at the top, below 4 % of room.
  const auto top = [](const std::string& svg) {
    double least = std::numeric_limits<double>::infinity();
    const auto path = svg.substr(svg.rfind("d=\"") + 3);
    for (auto at = path.find(' '); at != path.npos; at = path.find(' ', at + 1)) {
      const double y = std::strtod(path.c_str() + at, nullptr);
      if (y > 0) least = std::min(least, y);
    }
    return least;
  };
  CHECK(top(large) < 45);
}

TEST_CASE("a chart without a point that can be drawn says so") {
  const double none = std::nan("");
  CHECK_THAT(to_svg({{.title = "t", .x_label = "step", .lines = {{"a", {1, 2}, {none, none}}}}}),
             Contains("no data"));
  CHECK_THAT(to_svg({{.title = "t",
                      .x_label = "step",
                      .lines = {{"a", {1, 2}, {0, -1}}},
                      .logarithmic = true}}),
             Contains("no data"));
  const auto one = to_svg({{.title = "t", .x_label = "step", .lines = {{"a", {1}, {5}}}}});
  CHECK(count(one, "<circle") == 1);
}

TEST_CASE("numbers that differ in their last bits only are drawn as one") {
  Chart chart;
  chart.lines.push_back({"lr", {1, 2}, {0.01, std::nextafter(0.01, 1)}});
  const auto svg = to_svg({chart});
  CHECK(svg.size() < 10'000);
  CHECK_THAT(svg, Contains("0.01"));
}
