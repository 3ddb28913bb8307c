// Ops that data may name. Plans and replacements are data: an op of theirs computes results from
// tensors, numbers and options, and touches nothing else.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace perigee::plan {

// Returns whether the text argument of this name is an option of an algorithm ("approximate",
// "rounding_mode"). Other texts are paths of files and messages. exec/ops applies the same list to
// LibTorch's schemas when a program is made.
bool is_option(std::string_view argument);

// Checks the ops of a replacement, before anything is compiled. Throws Error naming the op and
// `rewrite` where an op of LibTorch has a text that is no option (aten::from_file) or is an
// overload that writes to an operand of its caller (aten::add.out). "?x" and "1/?x" are numbers.
void check_data_ops(const graph::Graph& replacement, std::string_view rewrite);

}  // namespace perigee::plan
