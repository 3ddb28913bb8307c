// Jobs whose keys a strategy sets.
#pragma once

#include <span>
#include <string>

#include "job/job.h"

namespace perigee::job {

// A new value of a key, "a.b=VALUE", and the place where it was written, which precedes errors
// about it and ends with ": ".
struct Assignment {
  std::string text;
  std::string place = "--set: ";
};

// Returns Job::load of the file with these overrides. Throws Error with the place of the key.
Job load_with(const std::string& path, std::span<const Assignment> overrides);

}  // namespace perigee::job
