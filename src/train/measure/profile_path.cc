#include "train/measure/profile_path.h"

#include "base/files/cache_folder.h"

namespace perigee {

std::string default_profile() {
  const auto folder = cache_folder();
  return folder.empty() ? "" : folder + "/profile.sqlite";
}

std::string profile_of(const job::Job& job) {
  return job.cluster.profile.empty() ? default_profile() : job.cluster.profile;
}

}  // namespace perigee
