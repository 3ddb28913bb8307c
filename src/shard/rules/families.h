// The built-in rules by family (one .cc each), and their common patterns and lowerings.
#pragma once

#include <initializer_list>
#include <utility>

#include "shard/rules/rule.h"
#include "shard/rules/rule_lowering.h"

namespace perigee::shard {

using TextRules = std::initializer_list<std::pair<const char*, const char*>>;

// Adds rules given as text.
void add_text_rules(Rules& rules, TextRules table);

void add_pointwise_rules(Rules& rules);
void add_matmul_rules(Rules& rules);
void add_transform_rules(Rules& rules);
void add_view_rules(Rules& rules);
void add_reduce_rules(Rules& rules);
void add_norm_rules(Rules& rules);
void add_batch_norm_rules(Rules& rules);
void add_loss_rules(Rules& rules);
void add_vocabulary_rules(Rules& rules);
void add_attention_rules(Rules& rules);
void add_expert_rules(Rules& rules);
void add_convolution_rules(Rules& rules);
void add_index_rules(Rules& rules);
void add_spatial_rules(Rules& rules);
void add_random_rules(Rules& rules);

// Every result dim is free; operands are aligned at the right and broadcast; linear operands come
// from a table of ops. Returns nothing if results differ in shape.
std::optional<Pattern> pointwise_pattern(const Call& call);

// Returns a pattern in which no dim may be sharded.
Pattern whole_pattern(const Call& call);

// Returns the pattern of an op that keeps the shape of operand 0: operands and results of that
// shape share its dims, except those marked `whole`; other tensors are replicated.
Pattern same_shape_pattern(const Call& call, const std::vector<bool>& whole);

// Lowers ops that draw random numbers.
std::vector<graph::ValueId> lower_random(RuleLowering& lowering);

// Lowers attention and its backward pass (attention/lower.cc).
std::vector<graph::ValueId> lower_attention(RuleLowering& lowering);

}  // namespace perigee::shard
