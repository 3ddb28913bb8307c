// The parts of the table of keys (keys.h).
#pragma once

#include <vector>

#include "job/keys.h"

// Where a key's value lies, as Key::field.
#define FIELD(member) [](Job& j, Group& g) -> Ref { return (void)j, (void)g, &member; }

namespace perigee::job {

// Those of [model], in the order of the reference page.
std::vector<Key> model_keys();

}  // namespace perigee::job
