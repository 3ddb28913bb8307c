// The purpose of a section of a program. Its printed name follows from it.
#pragma once

#include <cstdint>
#include <string>

#include "compile/stages/part.h"

namespace perigee::compile {

// clang-format off
// With a pipeline, `micro` is replaced by `forward`, `backward` and `weights` of each part of the
// rank's stage.
enum class SectionKind : uint8_t {
  refresh,       // writes kept weights of a low precision after the host has written weights
  prologue,      // counts labels, microbatch by microbatch (only where needed)
  prologue_end,  // averages them over ranks
  micro,         // forward and backward pass of a microbatch
  forward,       // a part's forward pass
  backward,      // a part's backward pass; where weights are split off, for its inputs alone
  weights,       // the gradients of a part's weights
  step,          // clipping and the optimizer
  average,       // after every K-th step: copies of the model are averaged
};
// clang-format on

struct SectionRole {
  // The microbatches whose runs use this variant of the section: the first (gradients are written;
  // later ones add), the last (gradients are reduced), or the others.
  enum class Position : uint8_t { any, first, last };

  SectionKind kind = SectionKind::micro;
  PartId part = {};       // forward, backward, weights
  int piece = 0;          // from 0, of a section that is cut at expert all-to-alls (cut_exchanges)
  bool receives = false;  // holds only that section's messages, received early
  Position position = Position::any;
  int64_t period = 0;  // average: K

  bool operator==(const SectionRole&) const = default;

  bool is_prologue() const {
    return kind == SectionKind::prologue || kind == SectionKind::prologue_end;
  }

  // Returns "micro_first", "backward.3.kept.piece1", "average.4", ...
  std::string name() const {
    static constexpr const char* kNames[] = {"refresh", "prologue", "prologue_end",
                                             "micro",   "forward",  "backward",
                                             "weights", "step",     "average"};
    std::string text = kNames[static_cast<int>(kind)];
    if (part.defined()) text += "." + to_string(part);
    if (kind == SectionKind::average) text += "." + std::to_string(period);
    if (piece > 0) text += ".piece" + std::to_string(piece);
    if (receives) text += ".receive";
    if (position == Position::first) text += "_first";
    if (position == Position::last) text += "_last";
    return text;
  }
};

}  // namespace perigee::compile
