// The parts of the table of keys (keys.h).
#pragma once

#include <vector>

#include "job/keys.h"

// A JobKey::field that returns a pointer to a member of Job (j) or ParameterGroup (g).
#define FIELD(member) [](Job& j, ParameterGroup& g) -> Ref { return (void)j, (void)g, &member; }

namespace perigee::job {

// The keys of [model], in the order of the reference page.
std::vector<JobKey> model_keys();

// The keys of [cluster] and [profile].
std::vector<JobKey> cluster_keys();

// The keys of [optimizer] that are attributes of optimizers.
std::vector<JobKey> optimizer_option_keys();

}  // namespace perigee::job
