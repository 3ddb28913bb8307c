// Jobs with data in a folder, and their samples.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "data/data.h"
#include "tests/support/temporary_folder.h"

namespace perigee::data {

inline job::Job job_of(const test::Folder& folder, const std::string& data,
                       const std::string& model = "gpt", const std::string& more = "") {
  return job::Job::parse(
      fmt::format("seed = 7\n[data]\n{}\n[model]\nkind = \"{}\"\n{}\n", data, model, more),
      folder.at("job.toml"));
}

// Returns whether the batches of steps 1 to 5 are the same, read at once or in ranges.
inline bool is_independent_of_ranges(DataSource& source, int64_t global) {
  for (int64_t step = 1; step <= 5; ++step) {
    const auto whole = source.at(step, {0, global});
    for (const int64_t parts : {2, 3}) {
      for (int64_t i = parts - 1; i >= 0; --i) {  // in descending order
        const auto range = mesh::split(global, parts, i);
        for (const auto& [name, tensor] : source.at(step, range)) {
          if (!whole.at(name).narrow(0, range.begin, range.length).equal(tensor)) return false;
        }
      }
    }
  }
  return true;
}

inline std::vector<int64_t> list(const at::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

}  // namespace perigee::data
