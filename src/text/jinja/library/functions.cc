#include "text/jinja/library/functions.h"

#include <algorithm>
#include <ctime>

#include "text/jinja/run.h"
#include "text/jinja/values/access.h"
#include "text/jinja/values/operators.h"

namespace perigee::text::jinja {
namespace {

constexpr int64_t kLongestRange = 100'000;  // as of Jinja's sandbox

Value range(Run& run, const Arguments& given) {
  const auto a = bind(given, "range", {"start", "stop", "step"}, 1);
  const auto number = [&](size_t i, int64_t standard) {
    return a[i] ? whole_argument(a[i], "range", standard) : standard;
  };
  const int64_t begin = a[1] ? number(0, 0) : 0, end = a[1] ? number(1, 0) : number(0, 0);
  const int64_t step = number(2, 1);
  if (step == 0) refuse("the step of a range must not be 0");
  Values items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (int64_t(items.size()) >= kLongestRange) {
      refuse("a range must have at most {} numbers, but has more", kLongestRange);
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return run.list_of(std::move(items), List::Kind::range);
}

// The pairs of a mapping, if there is one, and of named arguments.
std::vector<std::pair<std::string, Value>> pairs_of(Run& run, const Arguments& given,
                                                    std::string_view callee) {
  std::vector<std::pair<std::string, Value>> pairs;
  const auto add = [&](const std::string& name, const Value& value) {
    run.spend(1 + pairs.size() / 8);
    const auto found = std::ranges::find(pairs, name, &std::pair<std::string, Value>::first);
    if (found != pairs.end()) {
      found->second = value;
    } else {
      pairs.emplace_back(name, value);
    }
  };
  if (given.positional.size() > 1) refuse("{} takes at most one mapping, but got several", callee);
  if (!given.positional.empty()) {
    const auto& source = given.positional[0];
    if (source.dict()) {
      for (const auto& [key, value] : source.dict()->items) {
        add(text_argument(&key, callee), value);
      }
    } else {
      for (const auto& pair : run.items_of(source)) {
        const auto parts = run.items_of(pair);
        if (parts.size() != 2) refuse("{} needs pairs, but got {} values", callee, parts.size());
        add(text_argument(&parts[0], callee), parts[1]);
      }
    }
  }
  for (const auto& [name, value] : given.named) add(name, value);
  run.make(pairs.size() * 2 * sizeof(Value));
  return pairs;
}

Value dict(Run& run, const Arguments& given) {
  std::vector<std::pair<Value, Value>> items;
  for (auto& [name, value] : pairs_of(run, given, "dict")) items.emplace_back(name, value);
  return make_dict(std::move(items));
}

Value new_namespace(Run& run, const Arguments& given) {
  return run.new_namespace(pairs_of(run, given, "namespace"));
}

Value raise_exception(Run&, const Arguments& given) {
  const auto a = bind(given, "raise_exception", {"message"}, 1);
  refuse("the template refuses these variables: {}",
         a[0]->text() ? *a[0]->text() : std::string("without a reason"));
}

Value strftime_now(Run& run, const Arguments& given) {
  const auto& format = text_argument(bind(given, "strftime_now", {"format"}, 1)[0], "strftime_now");
  if (format.empty()) return Value(std::string());
  if (format.size() > 1000)
    refuse("the format of a time must have at most 1000 bytes, but has more");
  std::tm time{};
  localtime_r(&run.now, &time);
  std::string text(format.size() * 4 + 1000, '\0');
  // A space tells an empty result from one that is too long.
  const auto size = std::strftime(text.data(), text.size(), (format + " ").c_str(), &time);
  if (size == 0) refuse("the time must have at most {} bytes, but has more", text.size());
  text.resize(size - 1);
  return run.text_of(std::move(text));
}

}  // namespace

std::map<std::string, Value, std::less<>> functions() {
  std::map<std::string, Value, std::less<>> all;
  const auto add = [&](const char* name, Value (*function)(Run&, const Arguments&)) {
    all.emplace(name, make_function(name, function));
  };
  add("range", range);
  add("dict", dict);
  add("namespace", new_namespace);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  return all;
}

}  // namespace perigee::text::jinja
