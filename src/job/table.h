// The parts of the table of keys (keys.h).
#pragma once

#include <vector>

#include "job/keys.h"

// A JobKey::field that returns a pointer to a member of Job (j), ParameterGroup (g)
// or SourceConfig (s).
#define FIELD(member)                      \
  [](Job& j, ListEntry& entry) -> Ref {    \
    [[maybe_unused]] auto& [g, s] = entry; \
    return (void)j, &member;               \
  }

// A Condition on the job j, with the text for messages.
#define NEEDS(text, condition)                   \
  {                                              \
    text, [](const Job& j) { return condition; } \
  }

namespace perigee::job {

// The keys of [model], in the order of the reference page.
std::vector<JobKey> model_keys();

// The keys of [data] and [[data.sources]].
std::vector<JobKey> data_keys();

// The keys of [cluster] and [profile].
std::vector<JobKey> cluster_keys();

// The keys of [optimizer] that are attributes of optimizers.
std::vector<JobKey> optimizer_option_keys();

}  // namespace perigee::job
