#include "optim/optimizers.h"

#include <algorithm>

#include "base/defect.h"
#include "optim/all.h"

namespace perigee::optim {
namespace {

template <class O>
Description describe() {
  Description d{.name = O::kName,
                .update = O::kUpdate,
                .decoupled_decay = O::kDecoupledDecay,
                .states = O::kStates,
                .attributes = O::kAttributes,
                .others = {}};
  if constexpr (requires { typename O::Others; }) d.others = O::Others::kName;
  return d;
}

}  // namespace

std::string Description::op() const { return fmt::format("perigee::{}_", name); }

const Attribute* Description::find(std::string_view attribute) const {
  const auto found = std::ranges::find(attributes, attribute, &Attribute::name);
  return found == attributes.end() ? nullptr : &*found;
}

const std::vector<Description>& optimizers() {
#define PERIGEE_DESCRIBE(O) describe<O>(),
  static const std::vector<Description> all = {PERIGEE_OPTIMIZERS(PERIGEE_DESCRIBE)};
#undef PERIGEE_DESCRIBE
  return all;
}

const Description* find_optimizer(std::string_view name) {
  const auto found = std::ranges::find(optimizers(), name, &Description::name);
  return found == optimizers().end() ? nullptr : &*found;
}

const Description* find_elementwise(std::string_view op) {
  const auto found = std::ranges::find_if(
      optimizers(), [&](const auto& d) { return d.is_elementwise() && d.op() == op; });
  return found == optimizers().end() ? nullptr : &*found;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const auto& optimizer : optimizers()) names.emplace_back(optimizer.name);
  return names;
}

double value_of(const Description& optimizer, std::string_view attribute, const Options& options) {
  if (const auto given = options.find(attribute); given != options.end()) return given->second;
  const auto* known = optimizer.find(attribute);
  if (!known) fail_defect("optim", "{} has no attribute {}", optimizer.name, attribute);
  return known->fallback;
}

std::vector<std::string> flat_states(const Description& optimizer, const Options& options) {
  std::vector<std::string> names;
  if (!optimizer.is_elementwise()) return names;
  for (const auto& state : optimizer.states) {
    if (!state.needs || value_of(optimizer, state.needs, options) != 0) {
      names.emplace_back(state.name);
    }
  }
  return names;
}

void check_options(const Options& options) {
  std::vector<std::string> names;
  for (const auto& optimizer : optimizers()) {
    for (const auto& attribute : optimizer.attributes) names.emplace_back(attribute.name);
  }
  for (const auto& [name, value] : options) {
    if (std::ranges::find(names, name) != names.end()) continue;
    fail("optim", "an option is an attribute of an optimizer, but got {}{}", name,
         did_you_mean(name, names));
  }
}

}  // namespace perigee::optim
