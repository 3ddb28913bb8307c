// Arguments of an archive's nodes.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "capture/exported/program.h"

namespace perigee::exported {

using Names = std::map<std::string, Item>;  // values of a graph by name

// Returns the argument of the node `user`, without its name. Throws Error for a value that no
// earlier node makes and for a kind of argument that no op of LibTorch takes.
Argument read_argument(const nlohmann::json& argument, const Names& names, const std::string& user);

// Returns the names of the values that a node's output has; "" for one that does not exist.
std::vector<std::string> output_names(const nlohmann::json& output);

}  // namespace perigee::exported
