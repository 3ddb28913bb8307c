// Jobs on documents, and their samples as lists.
#pragma once

#include <fmt/format.h>

#include "tests/support/torch_test.h"
// Torch first.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/data.h"
#include "tests/support/temporary_folder.h"

namespace perigee::test {

// Returns a job of a gpt on the data; `data` are keys of [data].
inline job::Job document_job(const Folder& folder, const std::string& data,
                             const std::string& more = "") {
  return job::Job::parse(
      fmt::format("seed = 7\n[model]\nkind = \"gpt\"\n[data]\n{}\n{}\n", data, more),
      folder.at("job.toml"));
}

inline std::vector<int64_t> list(const at::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

// Returns the tokens of a text with the tokenizer "bytes"; "|" is the end of text.
inline std::vector<int64_t> ids(std::string_view text) {
  std::vector<int64_t> found;
  for (const char c : text) found.push_back(c == '|' ? 0 : static_cast<unsigned char>(c));
  return found;
}

}  // namespace perigee::test
