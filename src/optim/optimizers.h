// The descriptions of all optimizers as data, by name.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/description.h"

namespace perigee::optim {

struct Description {
  std::string_view name;
  UpdateKind update = UpdateKind::elementwise;
  bool decoupled_decay = false;
  std::span<const State> states;
  std::span<const Attribute> attributes;
  // The optimizer of parameters that this one does not update; "": it updates all.
  std::string_view others;

  bool is_elementwise() const { return update == UpdateKind::elementwise; }
  // Whether parameters may be in a low precision without float32 masters, rounded at random.
  bool rounds_parameters() const { return is_elementwise(); }
  // Returns the op that updates a flat bucket: "perigee::adamw_".
  std::string op() const;
  // Returns the attribute of that name, or nullptr.
  const Attribute* find(std::string_view attribute) const;
};

// Returns the descriptions in the order of optim/all.h.
const std::vector<Description>& optimizers();

// Returns the optimizer of that name, or nullptr.
const Description* find_optimizer(std::string_view name);

// Returns the elementwise optimizer whose op this is (Description::op), or nullptr.
const Description* find_elementwise(std::string_view op);

std::vector<std::string> optimizer_names();

// Values of attributes by name. Attributes that are missing have their fallback.
using Options = std::map<std::string, double, std::less<>>;

// Returns the value of an attribute of `optimizer`.
double value_of(const Description& optimizer, std::string_view attribute, const Options& options);

// Returns the names of the states that an optimizer with these options keeps for a parameter. Those
// of optimizers that are not elementwise depend on the parameter and are not listed.
std::vector<std::string> flat_states(const Description& optimizer, const Options& options);

// Throws Error where an option is an attribute of no optimizer.
void check_options(const Options& options);

}  // namespace perigee::optim
