#include "train/task/job_json.h"

#include <sstream>

#include "base/text/toml.h"

namespace perigee::train {

nlohmann::json job_json(const job::Job& job) {
  std::ostringstream text;
  text << toml::json_formatter(toml::parse(job::to_toml(job)));
  return nlohmann::json::parse(text.str());
}

}  // namespace perigee::train
