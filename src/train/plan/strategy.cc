#include "train/plan/strategy.h"

#include "base/fail.h"
#include "train/plan/strategy_access.h"

namespace perigee {
namespace {

lua::Options lua_options(const ScriptOptions& options,
                         const std::shared_ptr<train::ScriptOutput>& output) {
  lua::Options script;
  script.print = [output](std::string_view line) { output->print(line); };
  script.limits = {options.seconds, options.megabytes};
  script.seed = options.seed;
  script.runtime_folder = options.runtime_folder;
  return script;
}

}  // namespace

Strategy::Strategy() : impl_(std::make_shared<Impl>()) {}

Strategy Strategy::file(const std::string& path, const ScriptOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->script = std::make_shared<lua::StrategyScript>(path, lua_options(options, impl->output));
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

Strategy Strategy::dialect(const job::Dialect& dialect, const ScriptOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->script = std::make_shared<lua::StrategyScript>(dialect, lua_options(options, impl->output));
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

Strategy Strategy::data(const std::string& json) {
  const auto value = nlohmann::json::parse(json, nullptr, false);
  if (value.is_discarded())
    fail("strategy", "a strategy as data must be JSON, but got {}", json.substr(0, 80));
  auto impl = std::make_shared<Impl>();
  impl->fixed = methods::from_json(value, "the strategy");
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

Strategy Strategy::plan(plan::Plan plan) {
  auto impl = std::make_shared<Impl>();
  impl->fixed.emplace().plan = std::move(plan);
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

bool Strategy::observes(const std::string& event) const {
  return impl_->script && impl_->script->observes(event);
}

double Strategy::ask(const std::string& event, int64_t step) const {
  if (impl_->script) return impl_->script->ask(event, step);
  fail("strategy", "the plan needs a strategy script with an event {}, but there is none", event);
}

void Strategy::notify(const std::string& event, const std::string& report) const {
  if (impl_->script) impl_->script->notify(event, nlohmann::json::parse(report));
}

}  // namespace perigee
