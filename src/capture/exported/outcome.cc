#include "capture/exported/outcome.h"

#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace perigee::exported {
namespace {

using nlohmann::json;

// Returns the keys of a node's children; empty: they have numbers. A dict's context is the JSON of
// its keys, that of other types depends on them.
std::vector<std::string> keys_of(const json& node) {
  std::vector<std::string> keys;
  const auto& context = node.at("context");
  if (!context.is_string()) return keys;
  const auto read = json::parse(context.get<std::string>(), nullptr, /*allow_exceptions=*/false);
  if (!read.is_array() || read.size() != node.at("children_spec").size()) return keys;
  for (const auto& key : read) {
    if (!key.is_string()) return {};
    keys.push_back(key);
  }
  return keys;
}

void add_names(const json& node, const std::string& path, std::vector<std::string>& names) {
  if (node.at("type").is_null()) {
    names.push_back(path.empty() ? "output" : path);
    return;
  }
  const auto keys = keys_of(node);
  const auto& children = node.at("children_spec");
  for (size_t i = 0; i < children.size(); ++i) {
    const auto prefix = path.empty() ? keys.empty() ? "output." : "" : path + ".";
    add_names(children[i], prefix + (keys.empty() ? std::to_string(i) : keys[i]), names);
  }
}

}  // namespace

std::vector<std::string> result_names(const std::string& out_spec) {
  std::vector<std::string> names;
  try {
    const auto versioned = json::parse(out_spec);
    add_names(versioned.at(1), "", names);
  } catch (const json::exception& error) {
    fail("capture", "an exported model describes its output in JSON, but: {}", error.what());
  }
  return names;
}

Result result_of(const std::vector<std::pair<std::string, at::Tensor>>& results) {
  Result result;
  const auto is_loss = [&](size_t i) {
    const auto& [name, tensor] = results[i];
    return name == "loss" || (i == 0 && tensor.dim() == 0 && name.starts_with("output"));
  };
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& [name, tensor] = results[i];
    (is_loss(i) ? result.loss : result.results[name]) = tensor;
  }
  return result;
}

}  // namespace perigee::exported
