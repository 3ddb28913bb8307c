// Names of a program's values, with the purpose of each value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace perigee::compile {

// clang-format off
enum class ValueRole : uint8_t {
  other,                // an op's result, an input, a scalar
  parameter,            // a parameter, or the rank's piece of it; subject: the parameter
  gradient,             // a parameter's gradient; subject: the parameter
  flat_parameters,      // the weights of a bucket; subject: the bucket
  whole_parameters,     // a unit's weights, gathered once a step; subject: the unit
  gathered_parameters,  // a unit's weights, gathered where they are used; subject: the unit
  kept_parameters,      // weights in a low precision, kept from step to step; subject: that of the weights
  flat_gradients,       // the gradients of a bucket, a part or a rounded copy; subject: the bucket
  flat_states,          // the optimizer's state for a bucket; subject: the bucket
  state,                // the optimizer's state for a parameter; subject: the parameter
  history,              // recent maxima of a tensor, which scale it for fp8; subject: the tensor
  squared_norm,         // the sum of squares of gradients
};
// clang-format on

// A printed name; its role and subject decide, never its text. A name with a suffix keeps both.
struct ValueName {
  ValueName() = default;
  ValueName(const char* name) : text(name) {}             // NOLINT(google-explicit-constructor)
  ValueName(std::string name) : text(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  ValueName(std::string name, ValueRole role, std::string subject)
      : text(std::move(name)), role(role), subject(std::move(subject)) {}

  std::string text;
  ValueRole role = ValueRole::other;
  std::string subject;

  bool operator==(std::string_view other) const { return text == other; }
};

inline ValueName operator+(ValueName name, std::string_view suffix) {
  name.text += suffix;
  return name;
}

// Return PARAM, "gradient:PARAM", "STATE:PARAM", "parameters.BUCKET",
// "gradients.BUCKET" and "STATE.BUCKET".
inline ValueName parameter_name(const std::string& parameter) {
  return {parameter, ValueRole::parameter, parameter};
}
inline ValueName gradient_name(const std::string& parameter) {
  return {"gradient:" + parameter, ValueRole::gradient, parameter};
}
inline ValueName state_name(const std::string& state, const std::string& parameter) {
  return {state + ":" + parameter, ValueRole::state, parameter};
}
inline ValueName flat_parameters_name(const std::string& bucket,
                                      ValueRole role = ValueRole::flat_parameters) {
  return {"parameters." + bucket, role, bucket};
}
inline ValueName flat_gradients_name(const std::string& bucket) {
  return {"gradients." + bucket, ValueRole::flat_gradients, bucket};
}

inline ValueName flat_states_name(const std::string& state, const std::string& bucket) {
  return {state + "." + bucket, ValueRole::flat_states, bucket};
}

}  // namespace perigee::compile
