#include "checkpoint/weights/initial_weights.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "base/log_format.h"
#include "checkpoint/weights/form.h"
#include "checkpoint/weights/name_list.h"
#include "exec/tensor.h"

namespace perigee::checkpoint {
namespace {

using hf::Form;

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Returns the names under which the model's tensor is stored.
hf::Stored stored_names(const WantedTensor& wanted, const std::optional<hf::Names>& names) {
  if (names) {
    auto stored = names->find(wanted.name, wanted.shape.empty() ? 0 : wanted.shape[0]);
    if (stored) return *stored;
  }
  return {{wanted.name}, Form::same};
}

}  // namespace

std::optional<InitialWeights::Found> InitialWeights::look_up(const WantedTensor& wanted,
                                                             const std::optional<hf::Names>& names,
                                                             bool without_prefix) const {
  const auto stored = stored_names(wanted, names);
  Found found{{}, stored.form};
  for (const auto& name : stored.names) {
    const auto* tensor = files_.find(without_prefix ? names->without_prefix(name) : name);
    for (size_t i = 0; !tensor && !names && i < wanted.aliases.size(); ++i) {
      tensor = files_.find(wanted.aliases[i]);
    }
    if (!tensor) return std::nullopt;
    found.stored.push_back(tensor);
  }
  return found;
}

void InitialWeights::check(const WantedTensor& wanted, const Found& found) const {
  auto shape = wanted.shape;
  if (found.form == Form::experts_transposed) shape.erase(shape.begin());
  for (const auto* tensor : found.stored) {
    const auto there = shape_in_model(tensor->shape, found.form);
    const auto as = tensor->name == wanted.name ? "" : fmt::format(" (here {})", wanted.name);
    if (there != shape) {
      fail("weights",
           "train.weights has values of the model's shapes, but {}{} of {} is {} there and {} here",
           tensor->name, as, files_.path(), shape_text(there), shape_text(shape));
    }
    const bool convertible = graph::is_floating(tensor->dtype) && graph::is_floating(wanted.dtype);
    if (tensor->dtype == wanted.dtype || convertible) continue;
    fail("weights",
         "train.weights has values of the model's types, but {}{} of {} is {} there and {} here",
         tensor->name, as, files_.path(), graph::name_of(tensor->dtype),
         graph::name_of(wanted.dtype));
  }
}

InitialWeights::InitialWeights(const std::string& path, const job::ModelConfig& model,
                               const std::vector<WantedTensor>& wanted, bool partial)
    : files_(path), wanted_(wanted.size()) {
  // The naming under which most tensors are found.
  struct Naming {
    std::optional<hf::Names> names;
    bool without_prefix = false;
  };
  std::vector<Naming> namings{{}};
  if (const auto names = hf::names_of(model)) {
    namings = {{names, false}, {names, true}, {}};
    heads_ = names->heads();
  }
  const Naming* used = nullptr;
  size_t most = 0;
  for (const auto& naming : namings) {
    const auto count = static_cast<size_t>(std::ranges::count_if(wanted, [&](const auto& tensor) {
      return look_up(tensor, naming.names, naming.without_prefix).has_value();
    }));
    if (used && count <= most) continue;
    used = &naming;
    most = count;
  }
  const auto in_files = [&](std::string name) {
    return used->without_prefix ? used->names->without_prefix(name) : name;
  };
  std::set<std::string, std::less<>> known;
  std::vector<std::string> missing;
  bool tied = true;
  for (const auto& tensor : wanted) {
    tied = tied && tensor.name != "head.weight";
    known.insert(tensor.aliases.begin(), tensor.aliases.end());
    for (const auto& name : stored_names(tensor, used->names).names) known.insert(in_files(name));
    auto found = look_up(tensor, used->names, used->without_prefix);
    if (found) {
      check(tensor, *found);
      found_[tensor.name] = std::move(*found);
      continue;
    }
    for (const auto& name : stored_names(tensor, used->names).names) {
      if (!files_.find(in_files(name))) missing.push_back(in_files(name));
    }
  }
  if (tied && used->names && !partial) require_tied();
  std::vector<std::string> extra;
  for (const auto& name : files_.names()) {
    if (known.contains(name) || (used->names && used->names->is_unused(name, tied))) continue;
    extra.push_back(name);
  }
  unused_ = extra.size();
  if (most == 0 && wanted_ > 0) {
    fail("weights",
         "train.weights names values of the model's parameters, but {} has none of them: it lacks "
         "{}, and has {}",
         path, listed(missing, extra), extra.empty() ? "nothing" : listed(extra, missing));
  }
  if (partial || (missing.empty() && extra.empty())) return;
  std::vector<std::string> reasons;
  const auto count = [](const auto& list) {
    return fmt::format("{} {}", list.size(), list.size() == 1 ? "is" : "are");
  };
  if (!missing.empty()) {
    reasons.push_back(fmt::format("{} missing: {}", count(missing), listed(missing, extra)));
  }
  if (!extra.empty()) {
    reasons.push_back(fmt::format("{} not of the model: {}", count(extra), listed(extra, missing)));
  }
  fail("weights",
       "train.weights holds the {} tensors of the model and no others (train.initialise = true "
       "permits both, and the model initialises missing ones), but of those in {}, {}",
       wanted_, path, fmt::join(reasons, "; "));
}

void InitialWeights::require_tied() const {
  const auto* head = files_.find("lm_head.weight");
  const auto embed = found_.find("embed.weight");
  if (!head || embed == found_.end()) return;
  const auto& rows = *embed->second.stored[0];
  if (head->shape == rows.shape && std::ranges::equal(head->bytes, rows.bytes)) return;
  fail("weights",
       "the model's head is its embedding, but {} has a head of its own, lm_head.weight with other "
       "values than {}: set tie_word_embeddings = false in config.json, or model.tied = false",
       files_.path(), rows.name);
}

void InitialWeights::read(std::string_view name, const std::vector<mesh::Range>& ranges,
                          at::Tensor target) const {
  const auto& found = found_.find(name)->second;
  const auto copy = [&](const TensorBytes& stored, const std::vector<mesh::Range>& part,
                        at::Tensor to) {
    const auto all = at::from_blob(const_cast<std::byte*>(stored.bytes.data()), stored.shape,
                                   at::dtype(exec::scalar_type(stored.dtype)));
    const auto wanted = part_in_model(all, found.form, heads_, part);
    bytes_read_ += static_cast<int64_t>(wanted.nbytes());
    to.copy_(wanted);
    if (at::isfinite(to).all().item<bool>()) return;
    log::warn("{} of {} has numbers that are NaN or infinite in {}", stored.name, files_.path(),
              graph::name_of(exec::dtype_of(to.scalar_type())));
  };
  if (found.form != Form::experts_transposed) return copy(*found.stored[0], ranges, target);
  const std::vector<mesh::Range> inner(ranges.begin() + 1, ranges.end());
  for (int64_t e = 0; e < ranges[0].length; ++e) {
    copy(*found.stored[static_cast<size_t>(ranges[0].begin + e)], inner, target.select(0, e));
  }
}

int64_t InitialWeights::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, found] : found_) {
    for (const auto* stored : found.stored) bytes += std::ssize(stored->bytes);
  }
  return bytes;
}

std::string InitialWeights::report() const {
  auto text = fmt::format("{} of {} tensors loaded from {}", found_.size(), wanted_, files_.path());
  if (found_.size() < wanted_) {
    text += fmt::format("; {} initialised by the model", wanted_ - found_.size());
  }
  if (unused_ > 0) text += fmt::format("; {} there not of the model", unused_);
  return text;
}

}  // namespace perigee::checkpoint
