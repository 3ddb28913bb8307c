// Which methods exclude each other, and in which order they edit the plan: one table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "methods/method.h"

namespace perigee::methods {

// Returns the methods in the order in which they apply, whatever order a strategy lists them in.
// Methods that the table does not name (a user's own) keep their order, after the methods that
// define the mesh and before those that read placements. Throws Error naming both methods and the
// reason where two exclude each other.
std::vector<MethodUse> in_order(std::vector<MethodUse> uses);

// Throws Error, with both names and the reason, where the method excludes one of the others.
void check_conflicts(std::string_view method, std::span<const std::string> others);

// Returns whether the method is applied to the submeshes of a ragged mesh; the others see the
// rectangle of their largest sizes.
bool sees_submeshes(const Method& method);

}  // namespace perigee::methods
