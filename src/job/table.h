// The parts of the table of keys (keys.h).
#pragma once

#include <vector>

#include "job/keys.h"

// Where a key's value lies, as Key::field.
#define FIELD(member) [](Job& j, ParameterGroup& g) -> Ref { return (void)j, (void)g, &member; }

namespace perigee::job {

// Those of [model], in the order of the reference page.
std::vector<JobKey> model_keys();

// Those of [optimizer] that are attributes of optimizers.
std::vector<JobKey> optimizer_option_keys();

}  // namespace perigee::job
