// Fuzz targets: parsers of files and messages, fed with any bytes.
//
// An input either parses, or the parser throws Error with a sentence for a user. Any other
// exception, a sanitizer's report, a hang or an unlimited allocation is a defect. Where the value
// can be written again, the text must parse to the same value.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/error.h"

namespace perigee::fuzz {

// Feeds an input to a parser. May throw Error.
using Target = void (*)(std::string_view input);

// All targets of the program by name.
std::map<std::string, Target>& targets();

// Feeds an input to the target. Throws std::logic_error where an Error's text is no sentence for a
// user; passes all other exceptions on.
void feed(Target target, std::string_view input);

// A value that was written and read again differs, or is refused.
class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws Broken unless `holds`.
inline void require(bool holds, const std::string& rule) {
  if (!holds) throw Broken(rule);
}

// Returns f(), which must not throw Error, since its input comes from a value that parsed.
template <class F>
auto accepted(const std::string& rule, F f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Broken(rule + ": " + error.what());
  }
}

// Returns an empty folder of the process, which is removed at its end, for parsers of files.
const std::string& scratch_folder();

// Writes the input to a file of scratch_folder() and returns its path.
std::string scratch_file(const std::string& name, std::string_view input);

struct Registered {
  Registered(const char* name, Target target) { targets()[name] = target; }
};

}  // namespace perigee::fuzz

// Defines a target: PERIGEE_FUZZ_TARGET(job) { ... } with `input`.
#define PERIGEE_FUZZ_TARGET(name)                                                 \
  static void fuzz_##name(std::string_view input);                                \
  static const ::perigee::fuzz::Registered registered_##name(#name, fuzz_##name); \
  static void fuzz_##name(std::string_view input)
