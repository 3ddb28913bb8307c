#include "solve/ilp/integer_program.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/fail.h"

namespace perigee::solve {
namespace {

// Opens the plugin from the folder of the library that holds this function, once per process.
MinimiseFunction load_plugin() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&load_plugin), &self) == 0 || !self.dli_fname) {
    fail_run("solve",
             "the folder of libperigee_core.so must be known to find libperigee_cbc.so beside it");
  }
  const auto path = std::filesystem::path(self.dli_fname).parent_path() / "libperigee_cbc.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail_run("solve", "the solver ilp needs {}, but it does not load: {}", path.string(),
             dlerror());
  void* symbol = dlsym(library, "perigee_cbc_minimise");
  if (!symbol)
    fail_run("solve", "{} must be of this build, but it lacks perigee_cbc_minimise", path.string());
  return reinterpret_cast<MinimiseFunction>(symbol);
}

}  // namespace

int IntegerProgram::add_column(const Column& column) {
  columns_.push_back(column);
  return static_cast<int>(columns_.size()) - 1;
}

void IntegerProgram::add_row(const Terms& terms, Range range) {
  // CBC takes each column once per row.
  Terms sorted = terms;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  Terms merged;
  for (const auto& [column, value] : sorted) {
    if (!merged.empty() && merged.back().first == column) {
      merged.back().second += value;
    } else {
      merged.emplace_back(column, value);
    }
  }
  rows_.push_back(std::move(merged));
  ranges_.push_back(range);
}

IntegerProgram::Answer IntegerProgram::minimise(double seconds) const {
  static const MinimiseFunction plugin = load_plugin();
  Answer answer;
  plugin(*this, seconds, answer);
  return answer;
}

}  // namespace perigee::solve
