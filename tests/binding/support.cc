#include "tests/binding/support.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "capture/device/dtype.h"

namespace perigee::test {

LuaFile::LuaFile(const std::string& text) {
  if (text.ends_with(".lua")) {
    path_ = text;
    return;
  }
  static int count = 0;
  own_ = true;
  path_ = std::filesystem::temp_directory_path() /
          fmt::format("perigee_model_{}_{}.lua", getpid(), count++);
  std::ofstream(path_) << text;
}

LuaFile::~LuaFile() {
  if (own_) std::filesystem::remove(path_);
}

binding::LuaModelSettings LuaFile::settings(const std::string& options,
                                            const std::string& dtype) const {
  binding::LuaModelSettings settings;
  settings.file = path_;
  settings.job = {{"model", {{"dtype", dtype}, {"options", nlohmann::json::parse(options)}}},
                  {"data", {{"sequence", 6}, {"vocab", 11}}}};
  settings.lua.runtime_folder = "runtime";
  return settings;
}

std::string script_of(const std::string& body) {
  return "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
         "local Net = nn.Module 'Net'\n"
         "function Net:init() self.w = nn.Parameter(torch.ones { 3, 4 }) end\n"
         "return { model = function() return Net() end, forward = function(net, batch)\n"
         "local x, w = batch.x, net.w\n" +
         body + "\nend }\n";
}

std::string error_of(const std::string& script, const std::string& options) {
  const LuaFile file(script);
  try {
    const auto built = binding::load_lua(file.settings(options));
    capture_evaluation(*built.model.module, {{"x", torch::ones({2, 3}, torch::kDouble)}},
                       built.model.forward);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Batch random_batch(const std::vector<BatchField>& fields, int64_t samples) {
  torch::manual_seed(7);
  Batch batch;
  for (const auto& field : fields) {
    auto shape = field.shape;
    shape.insert(shape.begin(), samples);
    batch[field.name] = field.classes > 0 ? torch::randint(field.classes, shape, torch::kLong)
                                          : torch::randn(shape, tracing::scalar_type(field.dtype));
  }
  return batch;
}

}  // namespace perigee::test
