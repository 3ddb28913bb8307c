#include "job/step_list.h"

#include <algorithm>
#include <charconv>

#include "base/fail.h"

namespace perigee::job {
namespace {

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// Returns the number, or 0 where the text is none.
int64_t step_number(std::string_view text) {
  text = trimmed(text);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

}  // namespace

std::vector<StepRange> parse_steps(std::string_view text) {
  std::vector<StepRange> ranges;
  auto rest = trimmed(text);
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const auto item = rest.substr(0, comma);
    const auto dash = item.find('-');
    StepRange range{.first = step_number(item.substr(0, dash))};
    range.last = dash == item.npos ? range.first : step_number(item.substr(dash + 1));
    if (range.first < 1 || range.last < range.first || comma + 1 == rest.size()) {
      fail("job", "train.skip_steps lists steps from 1, \"12, 40-45\", but got \"{}\"", text);
    }
    ranges.push_back(range);
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  return ranges;
}

bool contains(const std::vector<StepRange>& ranges, int64_t step) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const StepRange& range) {
    return range.first <= step && step <= range.last;
  });
}

}  // namespace perigee::job
