// The calls of rank 0's generator that the other ranks repeat.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/comm/communicator.h"

namespace perigee::train {

struct RankCommand {
  enum class Kind : uint8_t { fill, extend, wait, end };
  static constexpr int64_t kNothing = -1;  // in place of a token: none

  Kind kind = Kind::end;
  int64_t slot = 0;  // of `fill`
  std::vector<int64_t> tokens = {};
};

// Returns rank 0's command on every rank of the group. All ranks call it.
RankCommand share(RankCommand command, exec::Group& group);

}  // namespace perigee::train
