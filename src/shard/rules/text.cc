// The text form of sharding rules (grammar in rule.h).
#include <algorithm>
#include <memory>
#include <sstream>

#include "base/fail.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

// One dim of a written pattern: "k", "b*", or "1".
struct Token {
  int letter = -1;      // index of Text::letters, -1 for "1"
  bool family = false;  // any number of dims
};

struct Letter {
  std::string name;
  bool sum = false;
  bool whole = false;
  bool family = false;
};

struct Tensor {
  std::string name;  // operands only; "" when by position
  bool optional = false;
  bool list = false;
  std::vector<Token> tokens;
};

struct Attribute {
  enum class Kind : uint8_t { any, equals, whole_dims, result_shape };
  std::string name;
  Kind kind = Kind::any;
  std::string value;  // equals
  int result = 0;     // result_shape
};

struct Text {
  std::vector<Letter> letters;
  std::vector<Tensor> operands, results;
  std::vector<Attribute> attributes;
  std::vector<std::vector<std::string>> linear;
};

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto at = text.find(separator);
    parts.push_back(trim(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

class Parser {
 public:
  Parser(std::string_view op, std::string_view text) : op_(op), text_(text) {}

  Text parse() {
    const auto semicolon = text_.find(';');
    const auto body = text_.substr(0, semicolon);
    const auto arrow = body.find("->");
    if (arrow == std::string_view::npos) refuse("has \"->\" between operands and results");
    operands(body.substr(0, arrow));
    for (auto part : split_at(body.substr(arrow + 2), ',')) {
      rule_.results.push_back({});
      rule_.results.back().tokens = tokens(part);
    }
    if (semicolon != std::string_view::npos) attributes(text_.substr(semicolon + 1));
    check_letters();
    return std::move(rule_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail("shard", "the rule of {} {}, but got \"{}\"", op_, what, text_);
  }

  void operands(std::string_view text) {
    if (trim(text).empty()) return;
    size_t named = 0;
    for (auto part : split_at(text, ',')) {
      Tensor tensor;
      if (const auto colon = part.find(':'); colon != std::string_view::npos) {
        auto name = trim(part.substr(0, colon));
        if (name.ends_with("[]")) {
          tensor.list = true;
          name.remove_suffix(2);
        } else if (name.ends_with("?")) {
          tensor.optional = true;
          name.remove_suffix(1);
        }
        if (name.empty()) refuse("names an operand before \":\"");
        tensor.name = name;
        part = part.substr(colon + 1);
        ++named;
      }
      tensor.tokens = tokens(part);
      rule_.operands.push_back(std::move(tensor));
    }
    if (named != 0 && named != rule_.operands.size()) refuse("names all operands or none");
  }

  std::vector<Token> tokens(std::string_view text) {
    std::vector<Token> found;
    std::istringstream words{std::string(text)};
    for (std::string word; words >> word;) {
      if (word == "1") {
        found.push_back({});
        continue;
      }
      const auto end = std::min(word.find_first_of("*+^"), word.size());
      const auto name = word.substr(0, end);
      const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      });
      if (!plain)
        refuse(fmt::format("has dims of letters with *, + or ^, or 1 (not \"{}\")", word));
      const int letter = letter_of(name);
      auto& properties = rule_.letters[letter];
      for (char suffix : word.substr(end)) {
        if (suffix == '*') properties.family = true;
        if (suffix == '+') properties.sum = true;
        if (suffix == '^') properties.whole = true;
      }
      found.push_back({letter});
    }
    return found;
  }

  int letter_of(const std::string& name) {
    for (size_t i = 0; i < rule_.letters.size(); ++i) {
      if (rule_.letters[i].name == name) return static_cast<int>(i);
    }
    rule_.letters.push_back({name});
    return static_cast<int>(rule_.letters.size()) - 1;
  }

  void attributes(std::string_view text) {
    while (!(text = trim(text)).empty()) {
      if (text.starts_with("linear(")) {
        const auto close = text.find(')');
        if (close == std::string_view::npos) refuse("closes \"linear(\"");
        linear(text.substr(7, close - 7));
        text.remove_prefix(close + 1);
        continue;
      }
      const auto word = text.substr(0, text.find_first_of(" \t\n"));
      text.remove_prefix(word.size());
      attribute(word);
    }
  }

  void linear(std::string_view text) {
    std::istringstream words{std::string(text)};
    std::vector<std::string> group;
    for (std::string word; words >> word;) group.push_back(word);
    const auto names_operand = [&](const std::string& word) {
      for (size_t i = 0; i < rule_.operands.size(); ++i) {
        if (word == rule_.operands[i].name || word == std::to_string(i)) return true;
      }
      return false;
    };
    for (const auto& word : group) {
      if (!names_operand(word))
        refuse(fmt::format("lists its operands in linear(), not \"{}\"", word));
    }
    if (group.empty()) refuse("lists operands in linear()");
    rule_.linear.push_back(std::move(group));
  }

  void attribute(std::string_view word) {
    Attribute attribute;
    if (const auto equals = word.find('='); equals != std::string_view::npos) {
      attribute.name = word.substr(0, equals);
      const auto value = word.substr(equals + 1);
      if (value.starts_with("@")) {
        attribute.kind = Attribute::Kind::result_shape;
        attribute.result = value.size() == 2 ? value[1] - '0' : -1;
        if (attribute.result < 0 || attribute.result >= static_cast<int>(rule_.results.size())) {
          refuse(fmt::format("gives {} the shape of a result, @0 and so on", attribute.name));
        }
      } else {
        attribute.kind = Attribute::Kind::equals;
        attribute.value = value;
      }
    } else if (word.ends_with("^")) {
      attribute.kind = Attribute::Kind::whole_dims;
      attribute.name = word.substr(0, word.size() - 1);
    } else {
      attribute.name = word;
    }
    if (attribute.name.empty()) refuse("names its attributes after \";\"");
    rule_.attributes.push_back(std::move(attribute));
  }

  void check_letters() {
    for (size_t l = 0; l < rule_.letters.size(); ++l) {
      auto& letter = rule_.letters[l];
      const auto has = [&](const Tensor& tensor) {
        return std::any_of(tensor.tokens.begin(), tensor.tokens.end(),
                           [&](const Token& t) { return t.letter == static_cast<int>(l); });
      };
      const bool in_operand = std::any_of(rule_.operands.begin(), rule_.operands.end(), has);
      const bool in_every_result = std::all_of(rule_.results.begin(), rule_.results.end(), has);
      if (!letter.whole && !letter.sum && !in_every_result) {
        refuse(fmt::format("has {} in every result, or marks it {}+ (summed) or {}^ (whole)",
                           letter.name, letter.name, letter.name));
      }
      if (letter.sum && !in_operand) refuse(fmt::format("sums {} over operands", letter.name));
    }
    for (auto* tensors : {&rule_.operands, &rule_.results}) {
      for (auto& tensor : *tensors) {
        int families = 0;
        for (auto& token : tensor.tokens) {
          token.family = token.letter >= 0 && rule_.letters[token.letter].family;
          families += token.family;
        }
        if (families > 1) refuse("has at most one dim with * in a tensor");
      }
    }
  }

  std::string_view op_, text_;
  Text rule_;
};

// Whether the argument has the value that a rule requires ("false", "0", "1.0", "none").
bool has_value(const graph::Arg& arg, const std::string& value) {
  if (std::holds_alternative<std::monostate>(arg)) return value == "none";
  if (const auto* b = std::get_if<bool>(&arg)) return value == (*b ? "true" : "false");
  if (const auto* i = std::get_if<int64_t>(&arg)) return value == std::to_string(*i);
  if (const auto* d = std::get_if<double>(&arg)) return value == fmt::format("{}", *d);
  if (const auto* s = std::get_if<std::string>(&arg)) return value == *s;
  return false;
}

// Makes the pattern of one node.
class Instance {
 public:
  Instance(const Text& rule, const Call& call) : rule_(rule), call_(call) {}

  std::optional<Pattern> make() {
    if (!match_operands() || !match_attributes()) return {};
    if (rule_.results.size() != static_cast<size_t>(call_.result_count())) return {};
    families_.resize(rule_.letters.size());
    singles_.assign(rule_.letters.size(), -1);
    sizes_.clear();
    if (!measure()) return {};
    for (int i = 0; i < call_.operand_count(); ++i) {
      pattern_.operands.push_back(tensor(*matched_[i], call_.shape(i)));
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      pattern_.results.push_back(call_.has_result(r)
                                     ? tensor(rule_.results[r], call_.result_shape(r))
                                     : std::vector<int>());
    }
    for (const auto& attribute : rule_.attributes) {
      if (attribute.kind == Attribute::Kind::whole_dims) forbid(attribute.name);
    }
    linear();
    return std::move(pattern_);
  }

 private:
  bool match_operands() {
    size_t position = 0;
    for (int i = 0; i < call_.operand_count(); ++i) {
      const Tensor* found = nullptr;
      for (; position < rule_.operands.size() && !found; ++position) {
        const auto& tensor = rule_.operands[position];
        if (tensor.name.empty() || tensor.name == call_.argument_of(i)) {
          found = &tensor;
          if (tensor.list) break;
        } else if (!tensor.optional && !tensor.list) {
          return false;
        }
      }
      if (!found) return false;
      matched_.push_back(found);
    }
    if (position < rule_.operands.size() && rule_.operands[position].list) ++position;
    for (; position < rule_.operands.size(); ++position) {
      if (!rule_.operands[position].optional) return false;
    }
    return true;
  }

  bool match_attributes() {
    for (const auto& [name, arg] : call_.node().args) {
      if (std::holds_alternative<graph::ValueId>(arg) ||
          std::holds_alternative<std::vector<graph::ValueId>>(arg) ||
          std::holds_alternative<std::monostate>(arg)) {
        continue;
      }
      const auto found = std::find_if(
          rule_.attributes.begin(), rule_.attributes.end(),
          [&, &name = name](const Attribute& a) { return a.name == name; });
      if (found == rule_.attributes.end()) return false;
      if (found->kind == Attribute::Kind::equals && !has_value(arg, found->value)) return false;
      if (found->kind == Attribute::Kind::result_shape) {
        pattern_.sizes.push_back({name, true, found->result, -1});
      }
    }
    return true;
  }

  // Number of dims of the family in a tensor of this rank; negative: the tensor has too few.
  static int family_length(const Tensor& tensor, size_t rank) {
    const bool has_family = std::any_of(tensor.tokens.begin(), tensor.tokens.end(),
                                        [](auto& t) { return t.family; });
    const int length = static_cast<int>(rank) - static_cast<int>(tensor.tokens.size());
    return has_family ? length + 1 : (length == 0 ? 0 : -1);
  }

  // Makes the dims: each letter's size is the largest that any tensor has.
  bool measure() {
    const auto visit = [&](const Tensor& tensor, const std::vector<int64_t>& shape) {
      const int length = family_length(tensor, shape.size());
      if (length < 0) return false;
      size_t d = 0;
      for (const auto& token : tensor.tokens) {
        const int count = token.family ? length : 1;
        for (int k = 0; k < count; ++k, ++d) {
          if (token.letter < 0) continue;
          const int dim = dim_of(token, count - 1 - k);
          if (dim >= 0) sizes_[dim] = std::max(sizes_[dim], shape[d]);
        }
      }
      return true;
    };
    for (int i = 0; i < call_.operand_count(); ++i) {
      if (!visit(*matched_[i], call_.shape(i))) return false;
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      if (call_.has_result(r) && !visit(rule_.results[r], call_.result_shape(r))) return false;
    }
    return true;
  }

  // The dim of a letter, or of the k-th dim from the right of a family; -1 for unsharded letters.
  int dim_of(const Token& token, int from_right) {
    const auto& letter = rule_.letters[token.letter];
    if (letter.whole) return -1;
    int* dim = &singles_[token.letter];
    if (token.family) {
      auto& family = families_[token.letter];
      if (static_cast<int>(family.size()) <= from_right) family.resize(from_right + 1, -1);
      dim = &family[from_right];
    }
    if (*dim < 0) {
      *dim = pattern_.add(letter.sum ? Role::sum : Role::free);
      sizes_.push_back(0);
    }
    return *dim;
  }

  std::vector<int> tensor(const Tensor& tensor, const std::vector<int64_t>& shape,
                          bool broadcast = true) {
    std::vector<int> dims;
    const int length = family_length(tensor, shape.size());
    for (const auto& token : tensor.tokens) {
      const int count = token.family ? length : 1;
      for (int k = 0; k < count; ++k) {
        int dim = token.letter < 0 ? -1 : dim_of(token, count - 1 - k);
        const int64_t size = shape[dims.size()];
        if (broadcast && dim >= 0 && size == 1 && sizes_[dim] > 1) dim = -1;
        dims.push_back(dim);
      }
    }
    return dims;
  }

  // Makes the dims that the attribute names whole in all tensors.
  void forbid(const std::string& attribute) {
    if (call_.operand_count() == 0) return;
    const auto named = call_.named_dims(attribute, call_.rank(0));
    const auto written = tensor(*matched_[0], call_.shape(0), false);
    for (size_t d = 0; d < named.size(); ++d) {
      const int dim = written[d];
      if (!named[d] || dim < 0) continue;
      for (auto* tensors : {&pattern_.operands, &pattern_.results}) {
        for (auto& letters : *tensors) std::replace(letters.begin(), letters.end(), dim, -1);
      }
    }
  }

  void linear() {
    for (const auto& group : rule_.linear) {
      std::vector<int> operands;
      for (int i = 0; i < call_.operand_count(); ++i) {
        const auto index = static_cast<size_t>(matched_[i] - rule_.operands.data());
        const bool listed = std::any_of(group.begin(), group.end(), [&](const std::string& word) {
          return (!matched_[i]->name.empty() && word == matched_[i]->name) ||
                 word == std::to_string(index);
        });
        if (listed) operands.push_back(i);
      }
      if (!operands.empty()) pattern_.linear.push_back(std::move(operands));
    }
  }

  const Text& rule_;
  const Call& call_;
  Pattern pattern_;
  std::vector<const Tensor*> matched_;      // per operand of the call
  std::vector<int> singles_;                // per letter: its dim
  std::vector<std::vector<int>> families_;  // per letter: dims from the right
  std::vector<int64_t> sizes_;              // per dim
};

}  // namespace

Rule parse_rule(std::string_view op, std::string_view text) {
  auto rule = std::make_shared<Text>(Parser(op, text).parse());
  return {[rule](const Call& call) { return Instance(*rule, call).make(); }};
}

void add_text_rules(Rules& rules, TextRules table) {
  for (const auto& [op, text] : table) rules.add_rule(op, text);
}

}  // namespace perigee::shard
