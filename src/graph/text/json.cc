#include "graph/text/json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "graph/flops.h"

namespace perigee::graph {
namespace {

using Json = nlohmann::ordered_json;

struct Sum {
  int64_t parameters = 0;
  int64_t bytes = 0;
  int64_t nodes = 0;
  double flops = 0;

  void add(const Sum& other) {
    parameters += other.parameters;
    bytes += other.bytes;
    nodes += other.nodes;
    flops += other.flops;
  }
};

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

// Sums by scope, inner scopes included.
class Sums {
 public:
  explicit Sums(const Graph& graph) {
    for (const auto& scope : graph.scopes) sums_[scope.path];
    sums_[""];
    for (const auto& input : graph.inputs) {
      if (input.kind != Input::Kind::parameter) continue;
      const auto& type = graph.type(input.value);
      add(parent_of(input.name), {type.numel(), type.bytes(), 0, 0});
    }
    for (const auto& node : graph.nodes) add(node.scope, {0, 0, 1, flops_of(graph, node)});
  }

  const Sum& at(const std::string& path) const { return sums_.at(path); }

 private:
  void add(std::string path, const Sum& sum) {
    for (;; path = parent_of(path)) {
      if (const auto found = sums_.find(path); found != sums_.end()) found->second.add(sum);
      if (path.empty()) return;
    }
  }

  std::unordered_map<std::string, Sum> sums_;
};

class Summary {
 public:
  explicit Summary(const Graph& graph) : graph_(graph), names_(value_names(graph)) {}

  Json json() const {
    Json out;
    out["format"] = "perigee.graph/1";
    out["hash"] = structural_hash(graph_);
    out["inputs"] = inputs();
    out["outputs"] = Json::array();
    for (const auto& output : graph_.outputs) {
      out["outputs"].push_back({{"kind", name_of(output.kind)},
                                {"name", output.name},
                                {"value", names_[output.value.index]}});
    }
    const Sums sums(graph_);
    out["scopes"] = Json::array();
    for (const auto& scope : graph_.scopes) {
      const auto& sum = sums.at(scope.path);
      out["scopes"].push_back({{"path", scope.path},
                               {"type", scope.type},
                               {"parameters", sum.parameters},
                               {"parameter_bytes", sum.bytes},
                               {"nodes", sum.nodes},
                               {"flops", sum.flops}});
    }
    out["nodes"] = Json::array();
    for (const auto& n : graph_.nodes) out["nodes"].push_back(node(n));
    out["totals"] = totals(sums.at(""));
    return out;
  }

 private:
  void add_type(Json& out, ValueId v) const {
    out["dtype"] = name_of(graph_.type(v).dtype);
    out["shape"] = graph_.type(v).shape;
  }

  Json inputs() const {
    Json out = Json::array();
    for (const auto& input : graph_.inputs) {
      Json item{{"kind", name_of(input.kind)}, {"name", input.name}};
      add_type(item, input.value);
      item["bytes"] = graph_.type(input.value).bytes();
      if (!input.trainable) item["trainable"] = false;
      if (!input.batched) item["batched"] = false;
      out.push_back(std::move(item));
    }
    return out;
  }

  Json node(const Node& node) const {
    Json out{{"op", node.op},
             {"scope", node.scope},
             {"phase", node.phase == Phase::forward ? "forward" : "backward"},
             {"args", Json::object()},
             {"results", Json::array()}};
    for (const auto& [name, arg] : node.args) {
      out["args"][name] = std::visit([&](const auto& a) { return argument(a); }, arg);
    }
    for (auto v : node.outputs) {
      if (!v.defined()) {
        out["results"].push_back(nullptr);
        continue;
      }
      Json result{{"name", names_[v.index]}};
      add_type(result, v);
      out["results"].push_back(std::move(result));
    }
    out["flops"] = flops_of(graph_, node);
    return out;
  }

  Json totals(const Sum& sum) const {
    int64_t trainable = 0;
    for (const auto& input : graph_.inputs) {
      if (input.kind == Input::Kind::parameter && input.trainable) {
        trainable += graph_.type(input.value).numel();
      }
    }
    double flops[2] = {0, 0};
    for (const auto& n : graph_.nodes) flops[static_cast<int>(n.phase)] += flops_of(graph_, n);
    return {{"parameters", sum.parameters}, {"parameter_bytes", sum.bytes},
            {"trainable", trainable},       {"nodes", sum.nodes},
            {"flops_forward", flops[0]},    {"flops_backward", flops[1]}};
  }

  Json argument(std::monostate) const { return nullptr; }
  Json argument(ValueId v) const { return v.defined() ? Json(names_[v.index]) : Json(nullptr); }
  Json argument(DType dtype) const { return name_of(dtype); }
  Json argument(double d) const {
    if (std::isnan(d)) return "nan";
    if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
    return d;
  }
  Json argument(bool b) const { return b; }
  Json argument(int64_t n) const { return n; }
  Json argument(const std::string& text) const { return text; }
  template <class T>
  Json argument(const std::vector<T>& items) const {
    Json out = Json::array();
    for (size_t i = 0; i < items.size(); ++i) out.push_back(argument(static_cast<T>(items[i])));
    return out;
  }

  const Graph& graph_;
  std::vector<std::string> names_;
};

}  // namespace

std::string summary(const Graph& graph) {
  // Bytes that are not UTF-8 become U+FFFD.
  const auto text = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  // One line for each input, scope and node.
  std::string out = "{";
  const Json json = Summary(graph).json();
  const char* separator = "\n";
  for (const auto& [key, value] : json.items()) {
    out += separator;
    separator = ",\n";
    out += text(key) + ": ";
    if (!value.is_array() || value.empty()) {
      out += text(value);
      continue;
    }
    const char* item_separator = "[\n  ";
    for (const auto& item : value) {
      out += item_separator;
      item_separator = ",\n  ";
      out += text(item);
    }
    out += "]";
  }
  return out + "\n}\n";
}

}  // namespace perigee::graph
