// A case for each sharding rule.
#pragma once

#include <map>
#include <string>

#include "tests/parity/support/case.h"

namespace perigee::parity {

// Cases by op; "op: variant" where an op has several.
const std::map<std::string, Build>& rule_cases();

}  // namespace perigee::parity
