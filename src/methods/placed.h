// Errors at the place where the user wrote the method that they are of.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "methods/method.h"

namespace perigee::methods {

// An error that already says where its cause stands.
class PlacedError : public Error {
 public:
  explicit PlacedError(const Error& error) : Error(error) {}
  // `place` ("FILE:LINE: ") goes before the error's text.
  PlacedError(const std::string& place, const Error& error);
};

// Runs f(). What it throws and has no place stands at this one; "": it stays as it is.
template <class F>
auto at_place(const std::string& place, F f) {
  try {
    return f();
  } catch (const PlacedError&) {
    throw;
  } catch (const Error& error) {
    if (place.empty()) throw;
    throw PlacedError(place, error);
  }
}

// Returns where the user wrote what the error is about: the word of the config's places that the
// error names, in quotes or else first, or the method.
std::string place_of(const Config& config, std::string_view error);

// Runs f(). What it throws and has no place stands where the config says.
template <class F>
auto at_place(const Config& config, F f) {
  try {
    return f();
  } catch (const PlacedError&) {
    throw;
  } catch (const Error& error) {
    const auto place = place_of(config, error.what());
    if (place.empty()) throw;
    throw PlacedError(place, error);
  }
}

// Runs check(plan) for a plan that the strategy made. An error has the place of the method that
// causes it: the first method without which, and without all later ones, the check passes. It has
// no place where the check fails without any method.
void check_methods(const Strategy& strategy, const PlanRequest& request, const plan::Plan& plan,
                   const std::function<void(const plan::Plan&)>& check);

}  // namespace perigee::methods
