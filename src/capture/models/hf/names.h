// Names of a model's tensors in Hugging Face files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/models/hf/families.h"
#include "job/job.h"

namespace perigee::hf {

// The tensors of a file that make one tensor of the model.
struct Stored {
  std::vector<std::string> names;  // one; of `Form::experts_transposed` one for each expert
  Form form = Form::same;
};

class Names {
 public:
  // `heads`: of attention, which Form::heads orders by. `family` outlives the names.
  Names(const Family& family, int64_t heads) : family_(&family), heads_(heads) {}

  // Returns where the model's tensor `ours` is stored; nothing for one that the family lacks.
  // `experts`: the size of its dim 0.
  std::optional<Stored> find(std::string_view ours, int64_t experts) const;
  // Returns whether the model does not need the file's tensor. `tied`: the model has no output
  // layer of its own.
  bool is_unused(std::string_view theirs, bool tied) const;
  // Returns the name without the prefix of the family, as files of the model without its head
  // have it.
  std::string without_prefix(std::string_view theirs) const;

  const Family& family() const { return *family_; }
  int64_t heads() const { return heads_; }

 private:
  const Family* family_;
  int64_t heads_;
};

// Returns the names for a model of a job: kind hf, or a built-in kind whose layers a family has
// (gpt: gpt2, llama: llama). Nothing for other kinds.
std::optional<Names> names_of(const job::ModelConfig& model);

}  // namespace perigee::hf
