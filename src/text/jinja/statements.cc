#include <algorithm>
#include <utility>

#include "text/jinja/library/filters.h"
#include "text/jinja/library/functions.h"
#include "text/jinja/run.h"
#include "text/jinja/syntax/lexer.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {
namespace {

// Sets a value until the end of the block.
template <class T>
class Set {
 public:
  Set(T& place, T value) : place_(place), old_(std::exchange(place, std::move(value))) {}
  ~Set() { place_ = std::move(old_); }

 private:
  T& place_;
  T old_;
};

FramePtr inside(const FramePtr& outer) { return std::make_shared<Frame>(Frame{outer, {}}); }

}  // namespace

Depth::Depth(Run& counted) : run(counted) {
  if (++run.depth_ > run.limits_.depth) {
    --run.depth_;
    refuse("macros and expressions must be nested at most {} deep, but are", run.limits_.depth);
  }
}

Depth::~Depth() { --run.depth_; }

Run::~Run() {
  for (const auto& names : namespaces_) names->items.clear();
  for (const auto& frame : frames_) frame->variables.clear();
}

void Run::spend(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) {
    refuse("a template must end within {} steps, but does not", limits_.steps);
  }
}

void Run::make(uint64_t bytes) {
  spend(bytes / 16);
  made_bytes_ += bytes;
  if (made_bytes_ > limits_.made_bytes) {
    refuse("a template must make at most {} bytes of texts and lists, but makes more",
           limits_.made_bytes);
  }
}

Value Run::list_of(Values items, List::Kind kind) {
  make(items.size() * sizeof(Value));
  return make_list(std::move(items), kind);
}

Value Run::text_of(std::string text) {
  make(text.size());
  return Value(std::move(text));
}

Value Run::new_namespace(std::vector<std::pair<std::string, Value>> items) {
  make(sizeof(Namespace) + 64);
  namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(items)}));
  return namespaces_.back();
}

Rendered Run::render(const Body& body, Frame variables) {
  try {
    frame_ = std::make_shared<Frame>(std::move(variables));
    frame_->outer = std::make_shared<Frame>(Frame{nullptr, functions()});
    frame_ = inside(frame_);
    out_ = &rendered_.text;
    execute(body);
  } catch (const Refusal& refusal) {
    throw PlacedRefusal(line_, refusal.what());
  }
  return std::move(rendered_);
}

void Run::emit(std::string_view text) {
  make(text.size());
  *out_ += text;
}

Run::Flow Run::execute(const Body& body) {
  for (const auto& statement : body.statements) {
    if (const auto flow = execute(*statement); flow != Flow::on) return flow;
  }
  return Flow::on;
}

Run::Flow Run::execute(const Statement& s) {
  spend(1);
  line_ = s.line;
  const Depth depth(*this);
  switch (s.kind) {
    case Statement::Kind::text:
      emit(s.text);
      break;
    case Statement::Kind::print: {
      const auto value = evaluate(*s.expressions[0]);
      if (const auto* text = value.text()) {
        emit(*text);
      } else {
        emit(text_form(*this, value));
      }
      break;
    }
    case Statement::Kind::condition: {
      for (size_t i = 0; i < s.expressions.size(); ++i) {
        if (truth(evaluate(*s.expressions[i]))) return execute(s.bodies[i]);
      }
      return s.bodies.size() > s.expressions.size() ? execute(s.bodies.back()) : Flow::on;
    }
    case Statement::Kind::loop:
      return loop(s);
    case Statement::Kind::assignment:
      assign(s.target, evaluate(*s.expressions[0]));
      break;
    case Statement::Kind::capture: {
      Value value(capture(s.bodies[0]));
      if (s.expressions[0]) value = filtered(*s.expressions[0], value);
      assign(s.target, value);
      break;
    }
    case Statement::Kind::macro:
      define_macro(s);
      break;
    case Statement::Kind::generation:
      generate(s);
      break;
    case Statement::Kind::end_loop:
      return Flow::end_loop;
    case Statement::Kind::next_item:
      return Flow::next_item;
  }
  return Flow::on;
}

Run::Flow Run::loop(const Statement& s) {
  auto items = items_of(evaluate(*s.expressions[0]));
  const auto outer = frame_;
  const Set restored(frame_, outer);
  if (s.expressions[1]) {
    Values chosen;
    for (auto& item : items) {
      frame_ = inside(outer);
      assign(s.target, item);
      if (truth(evaluate(*s.expressions[1]))) chosen.push_back(std::move(item));
    }
    items = std::move(chosen);
  }
  make(items.size() * sizeof(Value));
  const auto state = make_loop(std::move(items));
  bool completed = false;
  for (; state->index < state->items.size(); ++state->index) {
    spend(1);
    line_ = s.line;
    frame_ = inside(outer);
    frame_->variables.emplace("loop", state);
    assign(s.target, state->items[state->index]);
    const auto flow = execute(s.bodies[0]);
    if (flow == Flow::end_loop) break;
    completed |= flow == Flow::on;
  }
  frame_ = inside(outer);
  // As in Jinja, {% else %} follows where no iteration came to its end, also by {% break %}.
  return completed ? Flow::on : execute(s.bodies[1]);
}

std::string Run::capture(const Body& body) {
  std::string text;
  const Set out(out_, &text);
  const Set frame(frame_, inside(frame_));
  execute(body);
  return text;
}

void Run::generate(const Statement& s) {
  if (out_ != &rendered_.text) {
    refuse("{{% generation %}} must be outside of macros and {{% set %}} blocks");
  }
  if (in_generation_) refuse("{{% generation %}} must not be within another one");
  const Set within(in_generation_, true);
  const Set frame(frame_, inside(frame_));
  const auto begin = rendered_.text.size();
  make(sizeof(Span));
  execute(s.bodies[0]);
  rendered_.generated.push_back({begin, rendered_.text.size()});
}

void Run::assign(const Target& target, const Value& value) {
  spend(1);
  if (!target.parts.empty()) {
    const auto items = items_of(value);
    if (items.size() != target.parts.size()) {
      refuse("{} names must take {} values, but got {}", target.parts.size(), target.parts.size(),
             items.size());
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  make(target.name.size() + 64);
  if (target.attribute.empty()) {
    frame_->variables[target.name] = value;
    return;
  }
  const auto holder = look_up(target.name);
  auto* names = holder.names();
  if (!names) {
    refuse("{{% set %}} must assign attributes of a namespace, but \"{}\" is {}", target.name,
           holder.kind());
  }
  const auto found = std::ranges::find(names->items, target.attribute,
                                       &std::pair<std::string, Value>::first);
  if (found != names->items.end()) {
    found->second = value;
  } else {
    names->items.emplace_back(target.attribute, value);
  }
}

void Run::define_macro(const Statement& s) {
  make(sizeof(Frame) + s.text.size());
  frames_.push_back(frame_);
  frame_->variables[s.text] = make_function(s.text,
                                            [&s, frame = frame_](Run& run, const Arguments& given) {
                                              return run.call_macro(s, frame, given);
                                            });
}

Value Run::call_macro(const Statement& macro, const FramePtr& frame, const Arguments& given) {
  const auto& parameters = macro.parameters;
  std::vector<const Value*> bound(parameters.size());
  std::vector<std::pair<Value, Value>> named;
  const size_t ordered = std::min(parameters.size(), given.positional.size());
  for (size_t i = 0; i < ordered; ++i) bound[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto found = std::ranges::find(parameters, name, &Parameter::name);
    const size_t index = found - parameters.begin();
    if (index < parameters.size() && !bound[index]) {
      bound[index] = &value;
    } else if (macro.takes_named) {
      named.emplace_back(name, value);
    } else {
      refuse("the macro {} has no argument \"{}\" to give by name", macro.text, name);
    }
  }
  if (given.positional.size() > ordered && !macro.takes_others) {
    refuse("the macro {} takes at most {} arguments, but got {}", macro.text, parameters.size(),
           given.positional.size());
  }
  const Set restored(frame_, inside(frame));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, standard] = parameters[i];
    auto value = bound[i]   ? *bound[i]
                 : standard ? evaluate(*standard)
                            : Value::undefined(fmt::format("the argument \"{}\"", name));
    frame_->variables.insert_or_assign(name, std::move(value));
  }
  if (macro.takes_others) {
    Values others(given.positional.begin() + ordered, given.positional.end());
    frame_->variables.emplace("varargs", list_of(std::move(others), List::Kind::tuple));
  }
  if (macro.takes_named) frame_->variables.emplace("kwargs", make_dict(std::move(named)));
  std::string text;
  const Set out(out_, &text);
  execute(macro.bodies[0]);
  return Value(std::move(text));
}

}  // namespace perigee::text::jinja
