// A line of a terminal with a bar: how far work is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee::log {

struct Progress {
  std::string text;                  // of the work: "step 20/200"
  double share = -1;                 // of the work that is done, 0 to 1; below 0: not known
  std::vector<std::string> details;  // the most important first; those that fit are shown
};

// Returns the line, at most `columns` wide:
//   step 20/200 [==>                 ] loss 4.1700, 1:14 left, 19980 tokens/s
// The bar takes the columns that the texts leave, at most 32. Details that leave no room for a bar
// of 10 are left out but the first; where it does not fit either way, there is no bar.
std::string progress_line(const Progress& progress, int columns, bool colours);

// Shows the line where standard error is a terminal. Returns whether it is one.
bool progress(const Progress& progress);

}  // namespace perigee::log
