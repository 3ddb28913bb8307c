// Models in Lua, given as text.
#pragma once

#include <string>

#include "binding/model.h"
#include "capture/capture.h"
#include "tests/support/torch_test.h"

namespace perigee::test {

// A model of a script, captured or not.
class LuaFile {
 public:
  // Writes `text` to a file in a temporary folder; a name that ends in ".lua" is a shipped model.
  explicit LuaFile(const std::string& text);
  ~LuaFile();
  LuaFile(const LuaFile&) = delete;
  LuaFile& operator=(const LuaFile&) = delete;

  binding::LuaModelSettings settings(const std::string& options = "{}",
                                     const std::string& dtype = "float64") const;

 private:
  std::string path_;
  bool own_ = false;
};

// Returns a script of a model with a parameter `w` [3, 4]. `body`: its forward function over the
// batch's x [2, 3] and w, which returns a table of results.
std::string script_of(const std::string& body);

// Builds and captures the script's model in eval mode for x [2, 3]; returns the error, or "".
std::string error_of(const std::string& script, const std::string& options = "{}");

// Returns the batch of the fields, `samples` samples of random values.
Batch random_batch(const std::vector<BatchField>& fields, int64_t samples);

}  // namespace perigee::test
