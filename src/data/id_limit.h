// Which token ids a model takes.
#pragma once

#include <cstdint>
#include <string>

namespace perigee::data {

struct IdLimit {
  int64_t below = 0;  // ids are less than this; 0: any
  std::string why;    // where the limit comes from, for errors: "model.vocab"
};

}  // namespace perigee::data
