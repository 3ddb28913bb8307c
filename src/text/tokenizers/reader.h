// Values of a tokenizer file, with their places for errors.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace perigee::text {

// Each function throws Error ("[tokenizer] FILE: model.vocab must be ..., but ...").
class Reader {
 public:
  Reader(const nlohmann::json& value, std::string file, std::string path = "")
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }

  // Returns "FILE: model.vocab".
  std::string place() const;

  // Whether an object has the key, and not null.
  bool has(const char* key) const;

  // Returns the value of a key, which must be there.
  Reader at(const char* key) const;

  // Returns the elements of a list.
  std::vector<Reader> list() const;

  std::string text() const;
  std::string text(const char* key, std::string_view otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  int64_t integer() const;  // from 0 to 2^31 - 1
  double number() const;
  char32_t character() const;  // a text of one character

  // Returns the text `key`, which is one of `known`: the kind of a part.
  std::string kind(const char* key, std::string_view known) const;

  [[noreturn]] void wrong(std::string_view rule, std::string_view got) const;

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

}  // namespace perigee::text
