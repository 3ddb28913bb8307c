// By how much the simulator differs from the model, as a search learns it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "search/choice.h"

namespace perigee::search {

class Corrections {
 public:
  // Returns what a plan's time is by the simulator, in times the model's: as last noted for plans
  // of its row of submeshes and schedule; where none of those was judged, of its schedule, then of
  // schedules that split backward passes, or do not, then of layers like these. 1 where nothing is
  // known.
  double of(const Choice& choice) const;
  void note(const Choice& choice, double ratio);

  // The same of memory, of which other rows of submeshes tell nothing.
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
