// One rendering: variables, output and limits.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/syntax/syntax.h"
#include "text/jinja/template.h"
#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

// The variables of a body. Assignments go to the innermost frame.
struct Frame {
  std::shared_ptr<Frame> outer;
  std::map<std::string, Value, std::less<>> variables;
};
using FramePtr = std::shared_ptr<Frame>;

class Run;

// Counts a level of evaluation. Throws Refusal where there are too many.
struct Depth {
  explicit Depth(Run& run);
  ~Depth();
  Run& run;
};

class Run {
 public:
  Run(const Limits& limits, std::time_t now) : now(now), limits_(limits) {}
  ~Run();
  Run(const Run&) = delete;

  // Renders the template's body. Throws PlacedRefusal.
  Rendered render(const Body& body, Frame variables);

  // Throw Refusal where a limit is exceeded.
  void spend(uint64_t steps);
  void make(uint64_t bytes);  // also steps, for the bytes

  Value evaluate(const Expression& expression);
  Value call(const Value& function, const Arguments& arguments);

  // Returns the items of an iterable value. Throws Refusal for other values.
  Values items_of(const Value& value);
  // A list, whose items are counted.
  Value list_of(Values items, List::Kind kind = List::Kind::list);
  Value text_of(std::string text);
  Value new_namespace(std::vector<std::pair<std::string, Value>> items);

  const std::time_t now;

 private:
  friend struct Depth;
  enum class Flow { on, end_loop, next_item };

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow loop(const Statement& statement);
  void define_macro(const Statement& statement);
  Value call_macro(const Statement& macro, const FramePtr& frame, const Arguments& arguments);
  void generate(const Statement& statement);
  // Returns the text of a body in a frame of its own.
  std::string capture(const Body& body);
  void assign(const Target& target, const Value& value);
  void emit(std::string_view text);
  Value look_up(const std::string& name);

  Value evaluate_kind(const Expression& expression);
  Value compare_all(const Expression& expression);
  Value dict(const Expression& expression);
  Value concatenate(const Expression& expression);
  // Applies the filters of {% set x | name | name %} to a value.
  Value filtered(const Expression& filters, const Value& value);
  Value slice_of(const Expression& expression);
  Value call_of(const Expression& expression);
  Values values(const std::vector<ExpressionPtr>& expressions);
  Arguments arguments(const ArgumentList& list);

  const Limits limits_;
  uint64_t steps_ = 0;
  uint64_t made_bytes_ = 0;
  size_t depth_ = 0;
  int line_ = 1;
  FramePtr frame_;
  std::string* out_ = nullptr;
  Rendered rendered_;
  bool in_generation_ = false;
  // Namespaces and frames that may refer to each other, to be emptied at the end.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<FramePtr> frames_;
};

}  // namespace perigee::text::jinja
