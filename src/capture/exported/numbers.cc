#include "capture/exported/numbers.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/fail.h"

namespace perigee::exported {
namespace {

using c10::IValue;
using Values = std::span<const IValue>;

const IValue& at(Values values, size_t i) {
  if (i < values.size()) return values[i];
  fail("capture", "arithmetic on an exported model's sizes has operands, but {} is missing", i);
}

bool is_number(const IValue& value) { return value.isInt() || value.isDouble() || value.isBool(); }

const IValue& number_at(Values values, size_t i) {
  const auto& value = at(values, i);
  if (is_number(value)) return value;
  fail("capture", "arithmetic on an exported model's sizes has numbers as operands, but got a {}",
       value.tagKind());
}

double real(Values values, size_t i) {
  const auto& value = number_at(values, i);
  if (value.isDouble()) return value.toDouble();
  return static_cast<double>(value.isBool() ? value.toBool() : value.toInt());
}

int64_t integer_at(Values values, size_t i) {
  const auto& value = number_at(values, i);
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  fail("capture", "arithmetic on an exported model's sizes has whole numbers here, but got {}",
       value.toDouble());
}

bool truth(Values values, size_t i) { return real(values, i) != 0; }

bool any_real(Values values) {
  return std::any_of(values.begin(), values.end(), [](const auto& v) { return v.isDouble(); });
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) fail("capture", "an exported model divides its sizes by numbers, but got 0");
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) result *= base;
  return result;
}

// A function of two numbers: of whole ones where both are.
template <auto Whole, auto Real>
IValue arithmetic(Values v) {
  if (any_real(v)) return Real(real(v, 0), real(v, 1));
  return Whole(integer_at(v, 0), integer_at(v, 1));
}

template <auto F>
IValue compare(Values v) {
  return any_real(v)
             ? F(real(v, 0), real(v, 1))
             : F(static_cast<double>(integer_at(v, 0)), static_cast<double>(integer_at(v, 1)));
}

template <auto F>
IValue bits(Values v) {
  if (number_at(v, 0).isBool() && number_at(v, 1).isBool()) {
    return F(integer_at(v, 0), integer_at(v, 1)) != 0;
  }
  return F(integer_at(v, 0), integer_at(v, 1));
}

at::Tensor tensor(Values v) {
  if (at(v, 0).isTensor()) return v[0].toTensor();
  fail("capture", "a size is that of a tensor, but got a {}", v[0].tagKind());
}

IValue size_of(Values v) { return tensor(v).size(integer_at(v, 1)); }
IValue stride_of(Values v) { return tensor(v).stride(integer_at(v, 1)); }
IValue numel_of(Values v) { return tensor(v).numel(); }
IValue offset_of(Values v) { return tensor(v).storage_offset(); }

IValue nothing(Values) { return IValue(); }

// (condition, message)
IValue assert_number(Values v) {
  if (truth(v, 0)) return {};
  fail("capture", "an exported model holds for the sizes that it checks, but not for these: {}",
       v.size() > 1 && v[1].isString() ? v[1].toStringRef() : "an assertion fails");
}

std::unordered_map<std::string, NumberFunction> make_table() {
  using D = double;
  using I = int64_t;
  std::unordered_map<std::string, NumberFunction> table{
      {"_operator.add", arithmetic<[](I a, I b) { return a + b; }, [](D a, D b) { return a + b; }>},
      {"_operator.sub", arithmetic<[](I a, I b) { return a - b; }, [](D a, D b) { return a - b; }>},
      {"_operator.mul", arithmetic<[](I a, I b) { return a * b; }, [](D a, D b) { return a * b; }>},
      {"_operator.floordiv", arithmetic<floor_divide, [](D a, D b) { return std::floor(a / b); }>},
      {"_operator.mod", arithmetic<[](I a, I b) { return a - b * floor_divide(a, b); },
                                   [](D a, D b) { return a - b * std::floor(a / b); }>},
      {"_operator.pow",
       [](Values v) -> IValue {
         if (!any_real(v) && integer_at(v, 1) >= 0)
           return power(integer_at(v, 0), integer_at(v, 1));
         return std::pow(real(v, 0), real(v, 1));
       }},
      {"_operator.truediv", [](Values v) -> IValue { return real(v, 0) / real(v, 1); }},
      {"_operator.eq", compare<[](D a, D b) { return a == b; }>},
      {"_operator.ne", compare<[](D a, D b) { return a != b; }>},
      {"_operator.lt", compare<[](D a, D b) { return a < b; }>},
      {"_operator.le", compare<[](D a, D b) { return a <= b; }>},
      {"_operator.gt", compare<[](D a, D b) { return b < a; }>},
      {"_operator.ge", compare<[](D a, D b) { return b <= a; }>},
      {"_operator.and_", bits<[](I a, I b) { return a & b; }>},
      {"_operator.or_", bits<[](I a, I b) { return a | b; }>},
      {"_operator.lshift", [](Values v) -> IValue { return integer_at(v, 0) << integer_at(v, 1); }},
      {"_operator.rshift", [](Values v) -> IValue { return integer_at(v, 0) >> integer_at(v, 1); }},
      {"_operator.neg",
       [](Values v) -> IValue {
         return any_real(v) ? IValue(-real(v, 0)) : IValue(-integer_at(v, 0));
       }},
      {"_operator.pos", [](Values v) -> IValue { return number_at(v, 0); }},
      {"math.trunc",
       [](Values v) -> IValue { return static_cast<int64_t>(std::trunc(real(v, 0))); }},
      {"torch.sym_not", [](Values v) -> IValue { return !truth(v, 0); }},
      {"torch.sym_int",
       [](Values v) -> IValue { return static_cast<int64_t>(std::trunc(real(v, 0))); }},
      {"torch.sym_float", [](Values v) -> IValue { return real(v, 0); }},
      {"torch.sym_ite",
       [](Values v) -> IValue { return truth(v, 0) ? number_at(v, 1) : number_at(v, 2); }},
      {"torch.sym_max", arithmetic<[](I a, I b) { return std::max(a, b); },
                                   [](D a, D b) { return std::max(a, b); }>},
      {"torch.sym_min", arithmetic<[](I a, I b) { return std::min(a, b); },
                                   [](D a, D b) { return std::min(a, b); }>},
      {"torch._sym_sqrt", [](Values v) -> IValue { return std::sqrt(real(v, 0)); }},
      {"torch.sym_sqrt", [](Values v) -> IValue { return std::sqrt(real(v, 0)); }},
  };
  const auto aten = [&](const char* name, NumberFunction function) {
    table.emplace(std::string("torch.ops.aten.") + name, function);
  };
  aten("sym_size.int", size_of);
  aten("sym_stride.int", stride_of);
  aten("sym_numel.default", numel_of);
  aten("sym_storage_offset.default", offset_of);
  aten("_assert_scalar.default", assert_number);
  // Facts about sizes that capture knows, and about elements, of which it knows nothing.
  aten("_assert_tensor_metadata.default", nothing);
  aten("_assert_async.default", nothing);
  aten("_assert_async.msg", nothing);
  aten("sym_constrain_range.default", nothing);
  aten("sym_constrain_range_for_size.default", nothing);
  return table;
}

}  // namespace

NumberFunction find_number_function(const std::string& target) {
  static const auto& table = *new std::unordered_map<std::string, NumberFunction>(make_table());
  const auto found = table.find(target);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace perigee::exported
