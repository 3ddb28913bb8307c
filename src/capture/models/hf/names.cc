#include "capture/models/hf/names.h"

#include "base/text/match.h"

namespace perigee::hf {
namespace {

// Returns the text with `mark` replaced by `with`.
std::string replaced(std::string text, char mark, const std::string& with) {
  if (const auto at = text.find(mark); at != std::string::npos) text.replace(at, 1, with);
  return text;
}

// Returns the component of the name at the place of `*` in the pattern, which matches it.
std::string layer_of(std::string_view pattern, std::string_view name) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) return "";
  return std::string(name.substr(star, name.find('.', star) - star));
}

}  // namespace

std::optional<Stored> Names::find(std::string_view ours, int64_t experts) const {
  for (const auto& row : family_->names) {
    if (!matches(row.ours, ours)) continue;
    const auto theirs = replaced(row.theirs, '*', layer_of(row.ours, ours));
    Stored stored{{}, row.form};
    if (row.form != Form::experts_transposed) {
      stored.names = {theirs};
      return stored;
    }
    for (int64_t e = 0; e < experts; ++e) {
      stored.names.push_back(replaced(theirs, '#', std::to_string(e)));
    }
    return stored;
  }
  return std::nullopt;
}

bool Names::is_unused(std::string_view theirs, bool tied) const {
  if (tied && theirs == "lm_head.weight") return true;
  for (const char* pattern : family_->unused) {
    if (matches(pattern, theirs)) return true;
  }
  return false;
}

std::string Names::without_prefix(std::string_view theirs) const {
  const std::string_view prefix = family_->prefix;
  return std::string(theirs.starts_with(prefix) ? theirs.substr(prefix.size()) : theirs);
}

std::optional<Names> names_of(const job::ModelConfig& model) {
  if (model.kind == "hf") {
    const auto architecture = read_architecture(model.text("folder"));
    return Names(*architecture.family, architecture.heads);
  }
  if (model.kind == "gpt") return Names(*find_family("gpt2"), model.integer("heads"));
  if (model.kind == "llama") return Names(*find_family("llama"), model.integer("heads"));
  return std::nullopt;
}

}  // namespace perigee::hf
