// The description of an optimizer, from which checks, job keys, optimizer state, instructions,
// kernels and the reference page follow. optim/all.h lists the optimizers.
#pragma once

#include <cstdint>
#include <limits>

namespace perigee::optim {

// The unit of an update.
enum class UpdateKind : uint8_t {
  elementwise,     // each element independently, in flat buckets
  factored,        // a whole parameter by second moments of its rows and columns
  orthogonalized,  // a whole matrix by its orthogonalized momentum
};

// A tensor that is kept for each trained parameter, of the parameter's shape and zero before the
// first step. Its name is torch.optim's; in checkpoints it is "NAME:PARAMETER".
struct State {
  const char* name;
  // The attribute that must not be zero for the state to exist; nullptr: it always exists.
  const char* needs = nullptr;
};

enum class AttributeType : uint8_t { real, integer, flag };

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();
inline constexpr double kAsFallback = std::numeric_limits<double>::quiet_NaN();

// A constant of the update, which the job sets. Flags are 0 or 1.
struct Attribute {
  const char* name;
  AttributeType type = AttributeType::real;
  // The value where nothing sets it: torch.optim's default, or the paper's.
  double fallback = 0;
  // The key of the job's [optimizer] table; nullptr: `name`. Optimizers may share a key, with equal
  // types and limits.
  const char* key = nullptr;
  int item = -1;  // of a key that is a list: the position in it
  double job_default = kAsFallback;
  double least = -kNoLimit, more_than = -kNoLimit, most = kNoLimit, less_than = kNoLimit;
  const char* about = "";  // for the reference page; the same text for all items of a list
  // Where this attribute is not zero: an attribute that must be nonzero, and one that must be zero.
  const char* needs = nullptr;
  const char* excludes = nullptr;
};

// Numbers of one step. `scale` multiplies the gradient.
struct StepNumbers {
  double lr = 0;
  double step = 1;  // counts from 1
  double scale = 1;
  double weight_decay = 0;
};

}  // namespace perigee::optim
