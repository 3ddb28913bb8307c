// Errors with the place where the user wrote the method that caused them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "methods/method.h"

namespace perigee::methods {

// An error that already names the place of its cause.
class PlacedError : public Error {
 public:
  explicit PlacedError(const Error& error) : Error(error) {}
  // `place` ("FILE:LINE: ") goes before the error's text.
  PlacedError(const std::string& place, const Error& error);
};

// Runs f(). Adds the place to an Error that has none; "": rethrows it unchanged.
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

// Returns the place of the cause of an error: the place of the config's word that the error names
// (in quotes, or else first), or of the method.
std::string place_of(const Config& config, std::string_view error);

// Runs f(). Adds place_of(config, error) to an Error that has no place.
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
void check_methods(const StrategySpec& strategy, const PlanRequest& request, const plan::Plan& plan,
                   const std::function<void(const plan::Plan&)>& check);

}  // namespace perigee::methods
