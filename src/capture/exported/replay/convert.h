// Arguments in the types of an op's schema.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace perigee::exported {

// Returns the value converted to the argument's type: Python takes an int where a float is
// expected, a number where a list of numbers is, and tensors where optional tensors are. Returns
// nothing where it does not fit.
std::optional<c10::IValue> converted(const c10::Argument& argument, c10::IValue value);
std::optional<c10::IValue> converted(const c10::Argument& argument,
                                     const std::vector<c10::IValue>& list);

}  // namespace perigee::exported
