// Correction factors of the cost model, simulated / modelled, as a search learns them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "search/space/choice.h"

namespace perigee::search {

class Corrections {
 public:
  // Returns the factor of a plan's seconds: the last one noted for plans of its row of submeshes
  // and schedule; where none was judged, of its schedule, then of schedules that split backward
  // passes (or do not), then of the same axes within layers. 1 where none is known.
  double of(const Choice& choice) const;
  void note(const Choice& choice, double ratio);

  // The factor of memory. Other rows of submeshes are not used for it.
  double of_bytes(const Choice& choice) const;
  void note_bytes(const Choice& choice, double ratio);

 private:
  using Key = std::tuple<std::string, bool, bool, bool, int64_t, std::string, std::string>;
  using Memory = std::tuple<std::string, int, bool, bool, bool, bool>;
  static Key of_row(const Choice& choice);
  static Key of_schedule(const Choice& choice);
  static Key of_kind(const Choice& choice);
  static Key of_layers(const Choice& choice);
  static Memory of_memory(const Choice& choice);

  std::map<Key, double> ratios_;
  std::map<Memory, double> bytes_;
};

}  // namespace perigee::search
