// The built-in rules by family (rules_*.cc), and what they share.
#pragma once

#include <initializer_list>
#include <utility>

#include "shard/lower.h"
#include "shard/rule.h"

namespace perigee::shard {

using TextRules = std::initializer_list<std::pair<const char*, const char*>>;

// Adds rules given as text.
void add_text_rules(Rules& rules, TextRules table);

void add_pointwise_rules(Rules& rules);
void add_matmul_rules(Rules& rules);
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

// Every result dim is free, operands are aligned at the right and broadcast; linear operands by a
// table of ops. Nothing where results differ in shape.
std::optional<Pattern> pointwise_pattern(const Call& call);

// A pattern in which no dim may be sharded.
Pattern whole_pattern(const Call& call);

// A pattern for an op that keeps the shape of operand 0: every operand and result of that shape has
// its dims, except those marked whole; other tensors are whole.
Pattern same_shape_pattern(const Call& call, const std::vector<bool>& whole);

// The lowering of ops that draw random numbers.
std::vector<graph::ValueId> lower_random(Lowering& lowering);

// The lowering of attention and its backward pass (lower_attention.cc).
std::vector<graph::ValueId> lower_attention(Lowering& lowering);

}  // namespace perigee::shard
