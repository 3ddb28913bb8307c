// The agreement of hosts before they train one job together.
#pragma once

#include <functional>
#include <string>

#include "base/network/store_message.h"

namespace perigee::job {

struct HostAgreement {
  std::string settings;  // of this host, as text
  // Returns "" where another host's settings are those of this one, else a sentence.
  std::function<std::string(const std::string& others)> difference = [](const std::string&) {
    return std::string();
  };
  store::KeyedHash keyed_hash;  // under the job's secret
};

}  // namespace perigee::job
