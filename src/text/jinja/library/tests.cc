#include "text/jinja/library/tests.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/jinja/library/filters.h"
#include "text/jinja/values/access.h"
#include "text/jinja/values/characters.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {
namespace {

// A test of the value alone.
template <bool (*holds)(const Value&)>
bool of_value(Run&, const Value& value, const Arguments& given) {
  bind(given, "this test", {});
  return holds(value);
}

bool defined(const Value& v) { return !v.undefined(); }
bool undefined(const Value& v) { return v.undefined(); }
bool none(const Value& v) { return v.none(); }
bool string(const Value& v) { return v.text(); }
bool mapping(const Value& v) { return v.dict(); }
bool iterable(const Value& v) {
  return v.text() || v.list() || v.dict() || v.undefined() || v.loop();
}
bool sequence(const Value& v) {
  const auto* list = v.list();
  const bool ordered = list && list->kind != List::Kind::view &&
                       list->kind != List::Kind::generator;
  return v.text() || ordered || v.dict() || v.undefined();
}
bool number(const Value& v) { return v.number(); }
bool integer(const Value& v) { return v.integer(); }
bool real(const Value& v) { return v.real(); }
bool boolean(const Value& v) { return v.boolean(); }
bool is_true(const Value& v) { return v.boolean() && *v.boolean(); }
bool is_false(const Value& v) { return v.boolean() && !*v.boolean(); }
bool callable(const Value& v) { return v.function(); }

// A test of the value and another one.
template <bool (*holds)(Run&, const Value&, const Value&)>
bool of_two(Run& run, const Value& value, const Arguments& given) {
  return holds(run, value, *bind(given, "this test", {"other"}, 1)[0]);
}

bool unequal(Run& run, const Value& a, const Value& b) { return !equal(run, a, b); }
bool greater(Run& run, const Value& a, const Value& b) { return less(run, b, a); }
bool greater_or_equal(Run& run, const Value& a, const Value& b) { return less_or_equal(run, b, a); }
bool same(Run&, const Value& a, const Value& b) { return a.same(b); }
bool in(Run& run, const Value& a, const Value& b) { return contains(run, b, a); }
bool divisible(Run& run, const Value& a, const Value& b) {
  return !truth(arithmetic(run, "%", a, b));
}
template <int64_t rest>
bool parity(Run& run, const Value& value, const Arguments& given) {
  bind(given, "this test", {});
  return equal(run, arithmetic(run, "%", value, Value(int64_t(2))), Value(rest));
}

// Whether there are letters with case, all of which are of this one.
template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
bool cased(Run& run, const Value& value, const Arguments& given) {
  bind(given, "this test", {});
  const auto text = text_form(run, value);
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const auto c = next_character(text, at);
    if (other(c)) return false;
    found |= wanted(c);
  }
  return found;
}

template <class Find>
bool known(Find find, const Value& value) {
  return value.text() && find(*value.text()) != nullptr;
}
bool filter_name(const Value& v) { return known(find_filter, v); }
bool test_name(const Value& v) { return known(find_test, v); }

constexpr std::array kTests{
    Test{"defined", of_value<defined>},
    Test{"undefined", of_value<undefined>},
    Test{"none", of_value<none>},
    Test{"string", of_value<string>},
    Test{"mapping", of_value<mapping>},
    Test{"iterable", of_value<iterable>},
    Test{"sequence", of_value<sequence>},
    Test{"number", of_value<number>},
    Test{"integer", of_value<integer>},
    Test{"float", of_value<real>},
    Test{"boolean", of_value<boolean>},
    Test{"true", of_value<is_true>},
    Test{"false", of_value<is_false>},
    Test{"callable", of_value<callable>},
    Test{"filter", of_value<filter_name>},
    Test{"test", of_value<test_name>},
    Test{"odd", parity<1>},
    Test{"even", parity<0>},
    Test{"upper", cased<is_upper, is_lower>},
    Test{"lower", cased<is_lower, is_upper>},
    Test{"equalto", of_two<equal>},
    Test{"eq", of_two<equal>},
    Test{"==", of_two<equal>},
    Test{"ne", of_two<unequal>},
    Test{"!=", of_two<unequal>},
    Test{"lt", of_two<less>},
    Test{"<", of_two<less>},
    Test{"lessthan", of_two<less>},
    Test{"le", of_two<less_or_equal>},
    Test{"<=", of_two<less_or_equal>},
    Test{"gt", of_two<greater>},
    Test{">", of_two<greater>},
    Test{"greaterthan", of_two<greater>},
    Test{"ge", of_two<greater_or_equal>},
    Test{">=", of_two<greater_or_equal>},
    Test{"in", of_two<in>},
    Test{"sameas", of_two<same>},
    Test{"divisibleby", of_two<divisible>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto found = std::ranges::find(kTests, name, &Test::name);
  return found == kTests.end() ? nullptr : found;
}

std::string unknown_test(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& test : kTests) names.emplace_back(test.name);
  return fmt::format("a test must be known, but \"{}\" is not{}", name, did_you_mean(name, names));
}

}  // namespace perigee::text::jinja
