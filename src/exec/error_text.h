// The texts of errors, LibTorch's without their stack traces.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace perigee::exec {

inline std::string error_text(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch ? torch->what_without_backtrace() : error.what();
}

}  // namespace perigee::exec
