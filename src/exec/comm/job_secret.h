// Proofs that a process knows its job's secret.
#pragma once

#include <string>

#include "base/network/store_message.h"

namespace perigee::exec {

// Returns HMAC-SHA256 under the secret. An empty secret proves nothing: anybody knows it.
store::KeyedHash keyed_hash(const std::string& secret);

}  // namespace perigee::exec
