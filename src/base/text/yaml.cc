#include "base/text/yaml.h"

#include <yaml.h>

#include <charconv>
#include <cmath>

#include "base/fail.h"

namespace perigee {
namespace {

using nlohmann::json;

struct Parser {
  yaml_parser_t it;
  Parser() { yaml_parser_initialize(&it); }
  ~Parser() { yaml_parser_delete(&it); }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
};

struct Document {
  yaml_document_t it{};
  ~Document() { yaml_document_delete(&it); }
};

template <class T>
bool read_whole(const std::string& text, T& number) {
  const auto* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return {};
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  int64_t integer = 0;
  if (read_whole(text, integer)) return integer;
  double number = 0;
  if (read_whole(text, number) && std::isfinite(number)) return number;
  return text;
}

// Bytes that values may take, independent of and per byte of a text, and those of one value.
constexpr size_t kFree = size_t{4} << 20, kGrowth = 256, kNode = 64;

class Reader {
 public:
  // `size`: the text's.
  Reader(yaml_document_t& document, const std::string& file, size_t size)
      : document_(document), file_(file), left_(kFree + kGrowth * size) {}

  Yaml run() {
    if (auto* root = yaml_document_get_root_node(&document_)) yaml_.value = read(*root, "", 0);
    return std::move(yaml_);
  }

 private:
  template <class... Args>
  [[noreturn]] void wrong(const yaml_mark_t& at, fmt::format_string<Args...> text, Args&&... args) {
    fail("yaml", "{}:{}:{}: {}", file_, at.line + 1, at.column + 1,
         fmt::format(text, std::forward<Args>(args)...));
  }

  // Counts memory: a few aliases of aliases make more values than memory holds.
  void spend(const yaml_node_t& node, size_t bytes) {
    if (bytes > left_) wrong(node.start_mark, "aliases repeat values too often");
    left_ -= bytes;
  }

  json read(const yaml_node_t& node, const std::string& path, int depth) {
    constexpr int kDeepest = 64;  // an anchor may name a node that contains it
    if (depth > kDeepest) wrong(node.start_mark, "lists and tables are at most {} deep", kDeepest);
    spend(node, kNode + path.size());
    yaml_.lines[path] = static_cast<int64_t>(node.start_mark.line) + 1;
    switch (node.type) {
      case YAML_SEQUENCE_NODE:
        return sequence(node, path, depth);
      case YAML_MAPPING_NODE:
        return mapping(node, path, depth);
      case YAML_SCALAR_NODE: {
        const auto text = text_of(node);
        spend(node, text.size());
        return node.data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain_scalar(text) : json(text);
      }
      default:
        return {};
    }
  }

  json sequence(const yaml_node_t& node, const std::string& path, int depth) {
    auto list = json::array();
    const auto& items = node.data.sequence.items;
    for (auto* item = items.start; item < items.top; ++item) {
      auto value = read(at(*item), fmt::format("{}/{}", path, list.size()), depth + 1);
      list.push_back(std::move(value));
    }
    return list;
  }

  json mapping(const yaml_node_t& node, const std::string& path, int depth) {
    auto table = json::object();
    const auto& pairs = node.data.mapping.pairs;
    for (auto* pair = pairs.start; pair < pairs.top; ++pair) {
      const auto& key = at(pair->key);
      if (key.type != YAML_SCALAR_NODE) wrong(key.start_mark, "a key is a text");
      const auto name = text_of(key);
      if (table.contains(name)) wrong(key.start_mark, "the key \"{}\" occurs twice", name);
      const auto inner = path + "/" + name;
      table[name] = read(at(pair->value), inner, depth + 1);
      yaml_.lines[inner] = static_cast<int64_t>(key.start_mark.line) + 1;
    }
    return table;
  }

  const yaml_node_t& at(int index) { return *yaml_document_get_node(&document_, index); }

  static std::string text_of(const yaml_node_t& node) {
    return {reinterpret_cast<const char*>(node.data.scalar.value), node.data.scalar.length};
  }

  yaml_document_t& document_;
  const std::string& file_;
  size_t left_;  // bytes that further values may take
  Yaml yaml_;
};

// The parser's time grows with the square of the brackets that are open.
void check_open_brackets(std::string_view text, const std::string& file) {
  constexpr int kMost = 1000;  // those of texts that are not quoted count, too
  int open = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++open;
    if ((c == ']' || c == '}') && open > 0) --open;
    if (open > kMost) fail("yaml", "{}: more than {} brackets are not closed", file, kMost);
  }
}

}  // namespace

Yaml parse_yaml(std::string_view text, const std::string& file) {
  check_open_brackets(text, file);
  Parser parser;
  yaml_parser_set_input_string(&parser.it, reinterpret_cast<const unsigned char*>(text.data()),
                               text.size());
  const auto load = [&](Document& document) {
    if (yaml_parser_load(&parser.it, &document.it) != 0) return;
    const auto& mark = parser.it.problem_mark;
    fail("yaml", "{}:{}:{}: {}", file, mark.line + 1, mark.column + 1,
         parser.it.problem ? parser.it.problem : "this is no YAML");
  };
  Document document;
  load(document);
  auto yaml = Reader(document.it, file, text.size()).run();
  Document next;
  load(next);
  if (const auto* root = yaml_document_get_root_node(&next.it)) {
    fail("yaml", "{}:{}:{}: a file has one document, but here begins another", file,
         root->start_mark.line + 1, root->start_mark.column + 1);
  }
  return yaml;
}

}  // namespace perigee
