// Draws of property tests that do not depend on the size that rapidcheck begins with.
#pragma once

#include <rapidcheck.h>

#include <utility>
#include <vector>

namespace perigee::search {

constexpr double kRounding = 1e-9;  // relative: of sums in two orders

// Returns a number from `least` to `most`.
inline int pick(int least, int most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(least, most + 1));
}

inline bool coin() { return pick(0, 1) == 1; }

template <class T>
T one_of(std::vector<T> list) {
  return std::move(list[static_cast<size_t>(pick(0, static_cast<int>(list.size()) - 1))]);
}

}  // namespace perigee::search
