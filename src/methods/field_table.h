// The fields of a method as one table over the struct that its config is read into.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mesh/axis_set.h"
#include "methods/method.h"

namespace perigee::methods {

// A string, or a list of strings, in a config.
struct Names {
  std::vector<std::string> list;
  bool empty() const { return list.empty(); }
};

// How a C++ type is read from a config, and its text as a default.
template <class T>
struct FieldTraits;

template <class T>
struct ScalarTraits {
  static T read(const Json& value, const ConfigField&, std::string_view) { return value.get<T>(); }
};

template <>
struct FieldTraits<bool> : ScalarTraits<bool> {
  static constexpr auto type = FieldType::boolean;
  static std::string text(bool value, const ConfigField&) { return value ? "true" : "false"; }
};

template <>
struct FieldTraits<int64_t> : ScalarTraits<int64_t> {
  static constexpr auto type = FieldType::integer;
  static std::string text(int64_t value, const ConfigField&) { return std::to_string(value); }
};

template <>
struct FieldTraits<double> : ScalarTraits<double> {
  static constexpr auto type = FieldType::number;
  static std::string text(double value, const ConfigField&) {
    return fmt::format("{:.15g}", value);
  }
};

template <>
struct FieldTraits<std::string> : ScalarTraits<std::string> {
  static constexpr auto type = FieldType::string;
  static std::string text(const std::string& value, const ConfigField&) {
    return value.empty() ? "none" : '`' + value + '`';
  }
};

template <class T, FieldType kType>
struct ListTraits {
  static constexpr auto type = kType;
  static std::vector<T> read(const Json& value, const ConfigField&, std::string_view) {
    std::vector<T> list;
    for (const auto& item : value) list.push_back(item.get<T>());
    return list;
  }
  static std::string text(const std::vector<T>& list, const ConfigField&) {
    std::string text;
    for (const auto& item : list) {
      text += text.empty() ? "" : ", ";
      if constexpr (std::is_same_v<T, std::string>) {
        text += '`' + item + '`';
      } else {
        text += fmt::format("{}", item);
      }
    }
    return text.empty() ? "none" : text;
  }
};

template <>
struct FieldTraits<std::vector<std::string>> : ListTraits<std::string, FieldType::strings> {};
template <>
struct FieldTraits<std::vector<int64_t>> : ListTraits<int64_t, FieldType::integers> {};
template <>
struct FieldTraits<std::vector<double>> : ListTraits<double, FieldType::numbers> {};

template <>
struct FieldTraits<Names> {
  static constexpr auto type = FieldType::names;
  static Names read(const Json& value, const ConfigField&, std::string_view) {
    return {strings_of(value)};
  }
  static std::string text(const Names& names, const ConfigField& field) {
    return FieldTraits<std::vector<std::string>>::text(names.list, field);
  }
};

// One axis, several with commas between them, or a list.
template <>
struct FieldTraits<mesh::AxisSet> {
  static constexpr auto type = FieldType::names;
  static mesh::AxisSet read(const Json& value, const ConfigField& field, std::string_view method);
  static std::string text(const mesh::AxisSet& axes, const ConfigField& field) {
    return FieldTraits<std::vector<std::string>>::text(axes.names(), field);
  }
};

// A value that the method reads itself; null: not given.
template <>
struct FieldTraits<Json> {
  static constexpr auto type = FieldType::any;
  static Json read(const Json& value, const ConfigField&, std::string_view) { return value; }
  static std::string text(const Json& value, const ConfigField&) {
    if (value.is_null()) return "none";
    return value.is_string() ? '`' + value.get<std::string>() + '`' : value.dump();
  }
};

// An enumeration: its names are ConfigField::allowed, in the order of the enumerators.
template <class T>
requires std::is_enum_v<T>
struct FieldTraits<T> {
  static constexpr auto type = FieldType::string;
  static T read(const Json& value, const ConfigField& field, std::string_view) {
    const auto name = value.get<std::string>();
    size_t k = 0;
    while (field.allowed.at(k) != name) ++k;
    return static_cast<T>(k);
  }
  static std::string text(T value, const ConfigField& field) {
    return '`' + field.allowed.at(static_cast<size_t>(value)) + '`';
  }
};

// A value that may be left out.
template <class T>
struct FieldTraits<std::optional<T>> {
  static constexpr auto type = FieldTraits<T>::type;
  static std::optional<T> read(const Json& value, const ConfigField& field,
                               std::string_view method) {
    return FieldTraits<T>::read(value, field, method);
  }
  static std::string text(const std::optional<T>& value, const ConfigField& field) {
    return value ? FieldTraits<T>::text(*value, field) : "none";
  }
};

// A struct whose fields are a table in a config: those left out keep their values of `now`.
template <class T>
concept NestedFields = requires(const Json& value, const ConfigField& field,
                                std::string_view method, T now) {
  FieldTraits<T>::read(value, field, method, now);
};

// A member of the struct C, whatever its type.
template <class C>
class Member {
 public:
  Member() = default;
  template <class T, class B>
  Member(T B::*member)  // NOLINT(google-explicit-constructor): rows name members
      : type(FieldTraits<T>::type),
        set([member](C& config, const Json& value, const ConfigField& field,
                     std::string_view method) {
          if constexpr (NestedFields<T>) {
            config.*member = FieldTraits<T>::read(value, field, method, config.*member);
          } else {
            config.*member = FieldTraits<T>::read(value, field, method);
          }
        }),
        default_text([member](const ConfigField& field) {
          return FieldTraits<T>::text(C{}.*member, field);
        }) {}

  FieldType type = FieldType::any;
  std::function<void(C&, const Json&, const ConfigField&, std::string_view)> set;
  std::function<std::string(const ConfigField&)> default_text;
};

// One row: a ConfigField without the type and the default, which follow from the member.
template <class C>
struct FieldRow {
  std::string name;
  Member<C> member = {};               // none: the field has no effect
  std::optional<FieldType> type = {};  // of a member of type Json
  bool required = false;
  // The default in words, where it is not the member's initial value.
  std::string otherwise = {};
  double at_least = -kNoLimit, above = -kNoLimit, at_most = kNoLimit, below = kNoLimit;
  std::vector<std::string> allowed = {};
  std::string no_effect = {};
  std::string doc = {};
};

// The fields of a method whose config is the struct C. Defaults are the initial values of C.
template <class C>
class FieldTable {
 public:
  FieldTable(std::vector<FieldRow<C>> rows) {  // NOLINT(google-explicit-constructor)
    for (auto& row : rows) add(std::move(row));
  }
  // `base`: the fields of a struct that C derives from; they come first. Callers write the type of
  // `rows` out: GCC 12 has an internal error where a braced list decides between the templates.
  template <class B>
  FieldTable(const FieldTable<B>& base, std::vector<FieldRow<C>> rows)
      : FieldTable(std::vector<FieldRow<C>>()) {
    include(base);
    for (auto& row : rows) add(std::move(row));
  }
  // `rest`: the fields of another struct that C derives from; they come last.
  template <class B>
  FieldTable(std::vector<FieldRow<C>> rows, const FieldTable<B>& rest)
      : FieldTable(std::move(rows)) {
    include(rest);
  }

  const std::vector<ConfigField>& fields() const { return fields_; }

  // Returns `parsed` with the config's fields in place of its own. Throws Error as
  // check_value does.
  C parse(const Config& config, std::string_view method, C parsed = {}) const {
    for (size_t f = 0; f < fields_.size(); ++f) {
      const auto found = config.fields.find(fields_[f].name);
      if (found == config.fields.end()) continue;
      check_value(fields_[f], *found, method);
      if (setters_[f]) setters_[f](parsed, *found, fields_[f], method);
    }
    return parsed;
  }

 private:
  template <class>
  friend class FieldTable;
  using Setter = std::function<void(C&, const Json&, const ConfigField&, std::string_view)>;

  void add(FieldRow<C> row) {
    ConfigField field{.name = std::move(row.name),
                      .type = row.type.value_or(row.member.type),
                      .doc = std::move(row.doc),
                      .required = row.required,
                      .default_text = std::move(row.otherwise),
                      .at_least = row.at_least,
                      .above = row.above,
                      .at_most = row.at_most,
                      .below = row.below,
                      .allowed = std::move(row.allowed),
                      .no_effect = std::move(row.no_effect)};
    if (!field.no_effect.empty()) field.type = FieldType::boolean;
    if (field.default_text.empty() && !field.required && row.member.default_text) {
      field.default_text = row.member.default_text(field);
    }
    fields_.push_back(std::move(field));
    setters_.push_back(std::move(row.member.set));
  }

  template <class B>
  void include(const FieldTable<B>& other) {
    fields_.insert(fields_.end(), other.fields_.begin(), other.fields_.end());
    setters_.insert(setters_.end(), other.setters_.begin(), other.setters_.end());
  }

  std::vector<ConfigField> fields_;
  std::vector<Setter> setters_;
};

// A method whose config is the struct C.
template <class C>
class MethodWith : public Method {
 public:
  const std::vector<ConfigField>& fields() const final { return table().fields(); }
  void apply(plan::Plan& plan, const Config& config, const PlanRequest& request) const final {
    edit(plan, table().parse(config, name()), config, request);
  }

 protected:
  virtual const FieldTable<C>& table() const = 0;
  // Method::apply. `given`: the config's fields. `config`: its list part and which fields it has.
  virtual void edit(plan::Plan& plan, const C& given, const Config& config,
                    const PlanRequest& request) const = 0;
};

}  // namespace perigee::methods
