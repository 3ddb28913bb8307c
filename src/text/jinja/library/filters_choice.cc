// Filters that apply a filter or a test to each item.
#include <array>

#include "text/jinja/library/filters.h"
#include "text/jinja/library/tests.h"
#include "text/jinja/values/access.h"

namespace perigee::text::jinja {
namespace {

Arguments without_front(const Arguments& given, size_t count) {
  return {{given.positional.begin() + count, given.positional.end()}, given.named};
}

Value map(Run& run, const Value& value, const Arguments& given) {
  Values mapped;
  if (given.positional.empty()) {
    const auto a = bind(given, "map", {"attribute", "default"});
    if (!a[0]) refuse("map needs the name of a filter, or attribute = NAME");
    for (const auto& item : run.items_of(value)) {
      auto part = key_of(run, item, a[0]);
      mapped.push_back(part.undefined() && a[1] && !a[1]->none() ? *a[1] : part);
    }
  } else {
    const auto& name = text_argument(&given.positional[0], "map");
    const auto* filter = find_filter(name);
    if (!filter) refuse("{}", unknown_filter(name));
    const auto rest = without_front(given, 1);
    const Depth depth(run);
    for (const auto& item : run.items_of(value)) mapped.push_back(filter->apply(run, item, rest));
  }
  return run.list_of(std::move(mapped), List::Kind::generator);
}

// `attributes`: the first argument is the attribute that is tested. `wanted`: the test's result.
template <bool attributes, bool wanted>
Value choose(Run& run, const Value& value, const Arguments& given) {
  constexpr size_t kBefore = attributes ? 1 : 0;
  if (given.positional.size() < kBefore) refuse("selectattr needs the name of an attribute");
  const Test* test = nullptr;
  Arguments rest;
  if (given.positional.size() > kBefore) {
    const auto& name = text_argument(&given.positional[kBefore], "select");
    test = find_test(name);
    if (!test) refuse("{}", unknown_test(name));
    rest = without_front(given, kBefore + 1);
  }
  Values chosen;
  for (const auto& item : run.items_of(value)) {
    run.spend(1);
    const auto tested = attributes ? key_of(run, item, &given.positional[0]) : item;
    if ((test ? test->holds(run, tested, rest) : truth(tested)) == wanted) chosen.push_back(item);
  }
  return run.list_of(std::move(chosen), List::Kind::generator);
}

constexpr std::array kChoiceFilters{
    Filter{"map", map},
    Filter{"select", choose<false, true>},
    Filter{"reject", choose<false, false>},
    Filter{"selectattr", choose<true, true>},
    Filter{"rejectattr", choose<true, false>},
};

}  // namespace

std::span<const Filter> choice_filters() { return kChoiceFilters; }

}  // namespace perigee::text::jinja
