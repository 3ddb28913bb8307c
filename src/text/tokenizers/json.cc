#include "text/tokenizers/json.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/text/depth.h"

namespace perigee::text {
namespace {

using nlohmann::json;

// Makes the value of a text from its parts.
class Maker : public nlohmann::json_sax<json> {
 public:
  explicit Maker(std::string path) : path_(std::move(path)) {}
  json take() { return std::move(result_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double, const std::string& text) override { return add(json_number(text)); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& value) override {
    key_ = std::move(value);
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    const std::string_view why = error.what();
    const auto begin = why.find("parse error");
    fail("tokenizer", "{} must be JSON, but: {}", path_, why.substr(begin == why.npos ? 0 : begin));
  }

 private:
  json* place(json value) {
    if (open_.empty()) return &(result_ = std::move(value));
    auto& parent = *open_.back();
    if (parent.is_object()) return &(parent[std::move(key_)] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool add(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json value) {
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string path_, key_;
  json result_;
  std::vector<json*> open_;  // elements of a parent do not move while one of them is open
};

std::array<double, 309> make_powers() {
  std::array<double, 309> powers{};
  for (size_t i = 0; i < powers.size(); ++i) powers[i] = std::stod("1e" + std::to_string(i));
  return powers;
}

}  // namespace

double json_number(std::string_view text) {
  static const auto powers = make_powers();
  const bool negative = text.starts_with('-');
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool after_point = false, full = false;
  size_t at = negative ? 1 : 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '.') {
      after_point = true;
    } else if (c < '0' || c > '9') {
      break;
    } else {
      constexpr auto kMost = std::numeric_limits<uint64_t>::max();
      const auto digit = static_cast<uint64_t>(c - '0');
      full = full || digits > kMost / 10 || (digits == kMost / 10 && digit > kMost % 10);
      if (!full) digits = 10 * digits + digit;
      if (full && !after_point) ++exponent;
      if (!full && after_point) --exponent;
    }
  }
  if (at < text.size()) {  // e
    const bool minus = text.substr(at + 1).starts_with('-');
    int64_t given = 0;
    for (++at; at < text.size(); ++at) {
      if (text[at] >= '0' && text[at] <= '9' && given < 1'000'000)
        given = 10 * given + text[at] - '0';
    }
    exponent += minus ? -given : given;
  }
  auto value = static_cast<double>(digits);
  for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
  if (exponent >= 0) {
    value *= exponent < int64_t(powers.size()) ? powers[size_t(exponent)]
             : value == 0                      ? 0
                                               : HUGE_VAL;
  } else if (value != 0) {
    value /= powers[size_t(-exponent)];
  }
  return negative ? -value : value;
}

nlohmann::json read_json(const std::string& path) {
  const auto text = read_file(path, "tokenizer");
  check_json_depth(text, "tokenizer", path);
  Maker maker(path);
  json::sax_parse(text, &maker);
  return maker.take();
}

}  // namespace perigee::text
