#include "train/output/file_slices.h"

#include <nlohmann/json.hpp>

namespace perigee::train {
namespace {

constexpr const char* kFileSlices = "file_slices";

}  // namespace

data::Division with_slices_of(const std::string& state, data::Division division) {
  const auto json = nlohmann::json::parse(state, nullptr, false);
  const auto found = json.is_object() ? json.find(kFileSlices) : json.end();
  const bool given = json.is_object() && found != json.end() && found->is_number_unsigned();
  if (given) division.slices = found->get<int64_t>();
  return division;
}

std::string with_file_slices(const std::string& state, const data::Division& division) {
  auto json = nlohmann::json::parse(state);
  json[kFileSlices] = division.file_slices();
  return json.dump();
}

}  // namespace perigee::train
