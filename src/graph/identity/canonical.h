// Canonical byte strings, which hashing and common-subexpression elimination compare.
#pragma once

#include <string>

#include "graph/graph.h"

namespace perigee::graph {

void append_bytes(std::string& out, int64_t number);
void append_bytes(std::string& out, const std::string& text);
void append_bytes(std::string& out, const TensorType& type);

// Appends the op and its arguments. Operands by their index.
void append_call(std::string& out, const Node& node);

// Returns XXH3-128 of the bytes as 32 hexadecimal digits.
std::string digest(const std::string& bytes);

}  // namespace perigee::graph
