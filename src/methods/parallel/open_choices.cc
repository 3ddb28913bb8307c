#include "methods/parallel/open_choices.h"

namespace perigee::methods {

const std::vector<std::string>& solver_choices() {
  static const std::vector<std::string> choices = {"storage", "recompute", "offload"};
  return choices;
}

bool is_chosen(const plan::Plan& plan, const std::string& choice) {
  if (choice == "storage") return !plan.units.empty();
  return !plan.recompute.regions.empty() || !plan.offload.activations.empty();
}

}  // namespace perigee::methods
