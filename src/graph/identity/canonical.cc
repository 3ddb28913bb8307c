#include "graph/identity/canonical.h"

#include <bit>
#include <cmath>
#include <limits>

namespace perigee::graph {
namespace {

void append_item(std::string&, std::monostate) {}
void append_item(std::string& out, ValueId v) { append_bytes(out, int64_t{v.index}); }
void append_item(std::string& out, bool b) { out += static_cast<char>(b); }
void append_item(std::string& out, int64_t n) { append_bytes(out, n); }
void append_item(std::string& out, const std::string& text) { append_bytes(out, text); }
void append_item(std::string& out, DType dtype) { out += static_cast<char>(dtype); }
void append_item(std::string& out, double d) {
  if (std::isnan(d)) d = std::numeric_limits<double>::quiet_NaN();
  append_bytes(out, std::bit_cast<int64_t>(d));
}
template <class T>
void append_item(std::string& out, const std::vector<T>& items) {
  append_bytes(out, static_cast<int64_t>(items.size()));
  for (size_t i = 0; i < items.size(); ++i) append_item(out, static_cast<T>(items[i]));
}

}  // namespace

void append_bytes(std::string& out, int64_t number) {
  const auto bits = static_cast<uint64_t>(number);
  char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(bits >> (8 * i));
  out.append(bytes, 8);
}

void append_bytes(std::string& out, const std::string& text) {
  append_bytes(out, static_cast<int64_t>(text.size()));
  out += text;
}

void append_bytes(std::string& out, const TensorType& type) {
  append_item(out, type.dtype);
  append_item(out, type.shape);
}

void append_call(std::string& out, const Node& node) {
  append_bytes(out, node.op);
  append_bytes(out, static_cast<int64_t>(node.args.size()));
  for (const auto& [name, arg] : node.args) {
    append_bytes(out, name);
    out += static_cast<char>(arg.index());
    std::visit([&](const auto& a) { append_item(out, a); }, arg);
  }
}

}  // namespace perigee::graph
