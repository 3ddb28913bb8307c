#include "text/tokenizers/reader.h"

#include "base/fail.h"
#include "text/tokenizers/characters/unicode.h"

namespace perigee::text {

std::string Reader::place() const { return path_.empty() ? file_ : file_ + ": " + path_; }

void Reader::wrong(std::string_view rule, std::string_view got) const {
  fail("tokenizer", "{} must be {}, but {}", place(), rule, got);
}

bool Reader::has(const char* key) const {
  const auto found = value_->find(key);
  return value_->is_object() && found != value_->end() && !found->is_null();
}

Reader Reader::at(const char* key) const {
  if (!value_->is_object()) wrong("an object", fmt::format("is {}", value_->type_name()));
  Reader inner(*value_, file_, path_.empty() ? key : path_ + "." + key);
  const auto found = value_->find(key);
  if (found == value_->end()) inner.wrong("given", "is not");
  inner.value_ = &*found;
  return inner;
}

std::vector<Reader> Reader::list() const {
  if (!value_->is_array()) wrong("a list", fmt::format("is {}", value_->type_name()));
  std::vector<Reader> elements;
  for (size_t i = 0; i < value_->size(); ++i) {
    elements.emplace_back((*value_)[i], file_, fmt::format("{}[{}]", path_, i));
  }
  return elements;
}

std::string Reader::text() const {
  if (!value_->is_string()) wrong("a text", fmt::format("is {}", value_->type_name()));
  return value_->get<std::string>();
}

std::string Reader::text(const char* key, std::string_view otherwise) const {
  return has(key) ? at(key).text() : std::string(otherwise);
}

bool Reader::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const auto inner = at(key);
  if (!inner.value().is_boolean()) {
    inner.wrong("true or false", fmt::format("is {}", inner.value().type_name()));
  }
  return inner.value().get<bool>();
}

int64_t Reader::integer() const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > INT32_MAX) {
    wrong("an integer from 0 to 2147483647",
          "is " + (value_->is_number() ? value_->dump() : std::string(value_->type_name())));
  }
  return value_->get<int64_t>();
}

double Reader::number() const {
  if (!value_->is_number()) wrong("a number", fmt::format("is {}", value_->type_name()));
  return value_->get<double>();
}

char32_t Reader::character() const {
  const auto whole = text();
  if (whole.empty() || character_at(whole, 0).length != whole.size()) {
    wrong("one character", fmt::format("is \"{}\"", whole));
  }
  return character_at(whole, 0).code;
}

std::string Reader::kind(const char* key, std::string_view known) const {
  auto name = at(key).text();
  bool found = false;
  for (auto rest = known; !rest.empty();) {
    const auto end = rest.find(' ');
    found |= rest.substr(0, end) == name;
    rest = end == rest.npos ? "" : rest.substr(end + 1);
  }
  if (!found) at(key).wrong(fmt::format("one of: {}", known), fmt::format("is \"{}\"", name));
  return name;
}

}  // namespace perigee::text
