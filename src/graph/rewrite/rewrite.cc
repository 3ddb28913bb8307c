#include "graph/rewrite/rewrite.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/terms.h"

namespace perigee::graph {
namespace {

constexpr std::string_view kIncoming = "gradient:";

class Rewriter {
 public:
  Rewriter(Graph graph, const RewriteRule& rule, Rewritten& done,
           std::span<const std::string> within)
      : graph_(std::move(graph)),
        rule_(rule),
        pattern_(rule.pattern),
        done_(done),
        within_(within) {
    std::vector<int> readers(pattern_.values.size());
    for (const auto& node : pattern_.nodes) {
      node.each_operand([&](ValueId v) { ++readers[v.index]; });
    }
    for (const auto& output : pattern_.outputs) {
      if (output.kind == Output::Kind::result) {
        results_.push_back(output);
      } else {
        gradients_.push_back(output);
        auto& terms = terms_.emplace_back();
        find_terms(pattern_, readers, output.value, true, terms);
        std::ranges::stable_partition(terms, [&](ValueId v) { return !is_made(v); });
      }
    }
    for (const auto& input : pattern_.inputs) depends_.insert(input.value.index);
    for (const auto& node : pattern_.nodes) {
      bool depends = false;
      node.each_operand([&](ValueId v) { depends = depends || depends_.contains(v.index); });
      for (const auto v : node.outputs) {
        if (depends && v.defined()) depends_.insert(v.index);
      }
    }
  }

  Graph run() {
    const auto& anchor = pattern_.nodes[pattern_.values[results_[0].value.index].producer];
    const auto original = std::ssize(graph_.values);
    Readers readers(graph_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      if (node.op != anchor.op || node.phase != Phase::forward || !readers.live[n]) continue;
      // Values made by replacements are not matched, so that rewriting terminates.
      const auto v = node.outputs[pattern_.values[results_[0].value.index].result];
      if (!v.defined() || v.index >= original || !seen_.insert(v.index).second) continue;
      if (!apply(readers, static_cast<NodeId>(n), v)) continue;
      ++done_.count;
      readers = Readers(graph_);
      n = n > pattern_.nodes.size() ? n - pattern_.nodes.size() : 0;  // nodes before it are removed
    }
    return std::move(graph_);
  }

 private:
  bool apply(const Readers& readers, NodeId at, ValueId made) {
    const Matcher matcher(graph_, readers, pattern_);
    Binding binding{.values = std::vector<ValueId>(pattern_.values.size()),
                    .nodes = std::vector<NodeId>(pattern_.nodes.size(), -1)};
    if (!matcher.value(binding, results_[0].value, made)) return false;
    if (!Matcher::sizes_agree(binding) || !is_within(binding)) return false;
    // Try the sets of the graph's gradients, the full set first.
    std::string reason;
    for (size_t omitted = 0; omitted < (size_t{1} << gradients_.size()); ++omitted) {
      auto tried = binding;
      std::vector<size_t> wanted;
      std::vector<ValueId> targets;
      for (size_t g = 0; g < gradients_.size(); ++g) {
        if (omitted >> g & 1) continue;
        wanted.push_back(g);
        targets.insert(targets.end(), terms_[g].begin(), terms_[g].end());
      }
      if (!matcher.backward(tried, producers_of(pattern_, targets, Phase::backward))) continue;
      const auto why = replace(readers, tried, wanted, at);
      if (why.empty()) return true;
      if (reason.empty()) reason = why;
    }
    done_.refused.push_back(graph_.nodes[at].scope + ": " + reason);
    return false;
  }

  // Whether one of the scopes in `within_` holds the forward ops that depend on inputs.
  bool is_within(const Binding& b) const {
    const auto holds = [&](const std::string& outer) {
      for (size_t n = 0; n < pattern_.nodes.size(); ++n) {
        const auto& node = pattern_.nodes[n];
        if (b.nodes[n] < 0 || node.phase != Phase::forward || !depends(node)) continue;
        if (!contains_scope(outer, graph_.nodes[b.nodes[n]].scope)) return false;
      }
      return true;
    };
    return within_.empty() || std::any_of(within_.begin(), within_.end(), holds);
  }

  // Whether a node of the pattern computes the value.
  bool is_made(ValueId v) const { return pattern_.values[v.index].producer >= 0; }

  // Whether a node of the pattern depends on an input.
  bool depends(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId v) { return v.defined() && depends_.contains(v.index); });
  }

  // Returns "" where the pattern has been replaced, else the reason why not.
  std::string replace(const Readers& readers, const Binding& b, const std::vector<size_t>& wanted,
                      NodeId at) {
    std::set<NodeId> inside(b.nodes.begin(), b.nodes.end());
    inside.erase(-1);
    std::set<int32_t> boundary;  // results and terms: ops outside the pattern read them
    for (const auto& result : results_) boundary.insert(b.values[result.value.index].index);
    std::map<int32_t, ValueId> replaced_by;  // value of the graph: its replacement
    std::set<int32_t> removed;               // terms that nothing adds any more
    std::set<NodeId> sums;                   // of terms: nothing reads them any more
    // Index in gradients_, and the term that it replaces.
    std::vector<std::pair<size_t, ValueId>> gradient_terms;
    for (const auto g : wanted) {
      std::vector<ValueId> terms;
      for (const auto t : terms_[g]) {
        if (!b.values[t.index].defined() || !is_made(terms_[g].back())) {
          return "the gradient of \"" + gradients_[g].name +
                 "\" adds an input that is no operand of the ops that make its other parts";
        }
        terms.push_back(b.values[t.index]);
        boundary.insert(terms.back().index);
      }
      if (!merge_terms(readers, inside, terms, replaced_by, removed, sums)) {
        return "the parts of the gradient of \"" + gradients_[g].name +
               "\" are not added in one sum of their own";
      }
      gradient_terms.emplace_back(g, terms.back());
    }
    for (const auto n : inside) {
      for (const auto v : graph_.nodes[n].outputs) {
        if (!v.defined() || boundary.contains(v.index)) continue;
        const auto reader = std::find_if(readers.by_value[v.index].begin(),
                                         readers.by_value[v.index].end(),
                                         [&](NodeId r) { return !inside.contains(r); });
        const bool read = reader != readers.by_value[v.index].end();
        if (!read && !readers.is_output[v.index]) continue;
        if (!depends_on_input(b, v)) continue;
        return fmt::format(
            "{} inside it is {}", graph_.nodes[n].op,
            read ? "read by " + graph_.nodes[*reader].op +
                       (graph_.nodes[*reader].phase == Phase::backward ? " of the backward pass"
                                                                       : "")
                 : "a result");
      }
    }
    inside.merge(sums);
    return build(b, wanted, gradient_terms, replaced_by, at, inside);
  }

  bool depends_on_input(const Binding& b, ValueId v) const {
    for (size_t p = 0; p < b.values.size(); ++p) {
      if (b.values[p] == v) return depends_.contains(static_cast<int32_t>(p));
    }
    return true;
  }

  // Finds the sum of all these terms, which must be the only reader of each, and removes all terms
  // but the last from it. Adds the nodes that added them to `sums`. Returns false without such a sum.
  bool merge_terms(const Readers& readers, const std::set<NodeId>& inside,
                   const std::vector<ValueId>& terms, std::map<int32_t, ValueId>& replaced_by,
                   std::set<int32_t>& removed, std::set<NodeId>& sums) const {
    if (terms.size() == 1) return true;
    const auto sum_of = [&](ValueId v) {  // -1 where another op reads it, too
      auto by = readers.by_value[v.index];
      std::erase_if(by, [&](NodeId n) { return inside.contains(n); });
      const bool sums = by.size() == 1 && !readers.is_output[v.index] &&
                        is_sum(graph_.nodes[by[0]]) &&
                        term_of(graph_.nodes[by[0]], 0) != term_of(graph_.nodes[by[0]], 1);
      return sums ? by[0] : -1;
    };
    std::vector<std::vector<int32_t>> chains;
    for (auto v : terms) {
      auto& chain = chains.emplace_back();
      for (;;) {
        chain.push_back(v.index);
        const auto sum = sum_of(v);
        if (sum < 0) break;
        v = graph_.nodes[sum].outputs[0];
      }
    }
    const auto in_all = [&](int32_t v) {
      return std::all_of(chains.begin(), chains.end(), [&](const auto& chain) {
        return std::find(chain.begin() + 1, chain.end(), v) != chain.end();
      });
    };
    if (std::none_of(chains[0].begin() + 1, chains[0].end(), in_all)) return false;
    std::vector<ValueId> open(terms.begin(), terms.end() - 1);
    while (!open.empty()) {
      const auto v = open.back();
      open.pop_back();
      removed.insert(v.index);
      const auto& sum = graph_.nodes[*sums.insert(sum_of(v)).first];
      const auto made = sum.outputs[0];
      const auto other = term_of(sum, 0) == v ? term_of(sum, 1) : term_of(sum, 0);
      if (removed.contains(other.index)) {
        replaced_by.erase(made.index);
        open.push_back(made);
      } else {
        replaced_by[made.index] = other;
      }
    }
    return true;
  }

  TensorType type(const Binding& b, const TensorType& of_replacement) const {
    TensorType made = of_replacement;
    if (made.dtype == DType::float32) {
      made.dtype = *b.dtype;
    } else if (made.dtype == DType::float64) {
      made.dtype = *b.dtype == DType::float64 ? DType::float64 : DType::float32;
    }
    made.shape.clear();
    for (size_t d = 0; d < of_replacement.shape.size(); ++d) {
      if (d == 0 && of_replacement.shape[0] == kManyDims) {
        made.shape = *b.many;
      } else {
        made.shape.push_back(*b.size(of_replacement.shape[d]));
      }
    }
    return made;
  }

  Arg argument(const Binding& b, const Node& node, const std::string& name, const Arg& arg) const {
    const auto& graph = rule_.replacement;
    if (names_dims(name) && first_operand(node).defined()) {
      const auto& shape = graph.type(first_operand(node)).shape;
      const auto dim = [&](int64_t d) {
        if (const auto known = b.dim(d, shape)) return *known;
        fail("rewrite",
             "{} of a replacement cannot name a dim that stands for several, but that "
             "of {} does",
             node.op, rule_.name);
      };
      if (const auto* one = std::get_if<int64_t>(&arg)) return dim(*one);
      if (const auto* list = std::get_if<std::vector<int64_t>>(&arg)) {
        std::vector<int64_t> made;
        for (const auto d : *list) made.push_back(dim(d));
        return made;
      }
    }
    if (const auto* text = std::get_if<std::string>(&arg)) {
      if (text->starts_with('?')) return b.numbers.at(*text);
      if (text->starts_with("1/?")) return 1 / b.numbers.at(text->substr(2));
    } else if (const auto* integer = std::get_if<int64_t>(&arg)) {
      return *b.size(*integer);
    } else if (const auto* list = std::get_if<std::vector<int64_t>>(&arg)) {
      std::vector<int64_t> made;
      for (const auto size : *list) made.push_back(*b.size(size));
      return made;
    } else if (const auto* dtype = std::get_if<DType>(&arg)) {
      return type(b, {*dtype, {}}).dtype;
    }
    return arg;
  }

  std::string build(const Binding& b, const std::vector<size_t>& wanted,
                    const std::vector<std::pair<size_t, ValueId>>& gradient_terms,
                    std::map<int32_t, ValueId> replaced_by, NodeId at,
                    const std::set<NodeId>& inside) {
    const auto& made = rule_.replacement;
    std::vector<ValueId> values(made.values.size());
    for (const auto& input : made.inputs) {
      const auto* known = pattern_.find_input(input.name);
      values[input.value.index] = b.values[known->value.index];
    }
    // The gradients that the graph has decide which backward ops are emitted.
    std::vector<ValueId> targets;
    for (const auto g : wanted) {
      targets.push_back(made.find_output(Output::Kind::gradient, gradients_[g].name)->value);
    }
    const auto backward = producers_of(made, targets, Phase::backward);
    const auto forward = [&] {
      auto all = targets;
      for (const auto& result : results_) {
        all.push_back(made.find_output(Output::Kind::result, result.name)->value);
      }
      return producers_of(made, all, Phase::forward);
    }();
    // New backward ops take the position of the first backward op that reads an incoming gradient.
    NodeId backward_position = static_cast<NodeId>(graph_.nodes.size());
    for (size_t n = 0; n < pattern_.nodes.size(); ++n) {
      if (b.nodes[n] < 0 || pattern_.nodes[n].phase != Phase::backward) continue;
      pattern_.nodes[n].each_operand([&](ValueId v) {
        const auto& value = pattern_.values[v.index];
        if (value.producer >= 0) return;
        for (const auto& input : pattern_.inputs) {
          if (input.value == v && input.name.starts_with(kIncoming)) {
            backward_position = std::min(backward_position, b.nodes[n]);
          }
        }
      });
    }
    std::vector<Node> forward_nodes, backward_nodes;
    std::map<NodeId, NodeId> forward_of;  // node of the replacement: its index in `forward_nodes`
    auto next = static_cast<int32_t>(graph_.values.size());
    std::vector<Value> new_values;
    std::map<int32_t, ValueId> kept;  // by result of the replacement: the graph's value that it is
    for (const auto& result : results_) {
      const auto v = b.values[result.value.index];
      const auto from = made.find_output(Output::Kind::result, result.name)->value;
      if (made.values[from.index].producer >= 0 && type(b, made.type(from)) == graph_.type(v)) {
        kept.emplace(from.index, v);
      }
    }
    const auto add = [&](NodeId n, std::vector<Node>& to) {
      Node node = made.nodes[n];
      for (auto& [name, arg] : node.args) arg = argument(b, made.nodes[n], name, arg);
      node.each_operand([&](ValueId& v) { v = values[v.index]; });
      for (auto& v : node.outputs) {
        if (!v.defined()) continue;
        if (const auto known = kept.find(v.index); known != kept.end()) {
          v = values[v.index] = known->second;
          continue;
        }
        new_values.push_back({type(b, made.type(v)), -1, made.values[v.index].result});
        values[v.index] = {next};
        v = {next++};
      }
      node.scope = graph_.nodes[at].scope;
      to.push_back(std::move(node));
    };
    for (const auto n : forward) {
      forward_of[n] = static_cast<NodeId>(forward_nodes.size());
      add(n, forward_nodes);
    }
    for (const auto n : backward) add(n, backward_nodes);
    for (const auto& result : results_) {
      const auto* output = made.find_output(Output::Kind::result, result.name);
      const auto before = b.values[result.value.index], now = values[output->value.index];
      seen_.insert(before.index);
      if (now != before) replaced_by[before.index] = now;
    }
    for (const auto& [g, term] : gradient_terms) {
      const auto* output = made.find_output(Output::Kind::gradient, gradients_[g].name);
      replaced_by[term.index] = values[output->value.index];
    }
    const auto first = first_result(b, at);
    if (const auto why = out_of_order(forward_nodes, backward_nodes, first, backward_position);
        !why.empty())
      return why;
    splice(std::move(forward_nodes), std::move(backward_nodes), std::move(new_values), forward_of,
           first, backward_position, replaced_by, inside);
    return "";
  }

  static std::set<int32_t> outputs_of(const std::vector<Node>& nodes) {
    std::set<int32_t> values;
    for (const auto& node : nodes) {
      for (const auto v : node.outputs) values.insert(v.index);
    }
    return values;
  }

  NodeId first_result(const Binding& b, NodeId at) const {
    for (const auto& result : results_) {
      at = std::min(at, graph_.values[b.values[result.value.index].index].producer);
    }
    return at;
  }

  // Returns why a value that the new nodes read is computed too late; "" where none is.
  std::string out_of_order(const std::vector<Node>& forward_nodes,
                           const std::vector<Node>& backward_nodes, NodeId first,
                           NodeId backward_position) const {
    std::string why;
    const auto made = outputs_of(forward_nodes);
    const auto check = [&](const std::vector<Node>& nodes, NodeId before) {
      for (const auto& node : nodes) {
        node.each_operand([&](ValueId v) {
          if (v.index >= static_cast<int32_t>(graph_.values.size()) || made.contains(v.index))
            return;
          if (graph_.values[v.index].producer < before) return;
          why = node.op + " would read a value that is computed after it";
        });
      }
    };
    check(forward_nodes, first);
    check(backward_nodes, backward_position);
    return why;
  }

  // Inserts the new nodes, removes those of the pattern that no op reads, and renumbers producers.
  void splice(std::vector<Node> forward_nodes, std::vector<Node> backward_nodes,
              std::vector<Value> new_values, const std::map<NodeId, NodeId>& forward_of,
              NodeId first, NodeId backward_position, const std::map<int32_t, ValueId>& replaced_by,
              const std::set<NodeId>& inside) {
    graph_.values.insert(graph_.values.end(), new_values.begin(), new_values.end());
    const auto resolve = [&](ValueId& v) {
      for (auto found = replaced_by.find(v.index); found != replaced_by.end();
           found = replaced_by.find(v.index)) {
        v = found->second;
      }
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) graph_.nodes[n].each_operand(resolve);
    for (auto& node : backward_nodes)
      node.each_operand(resolve);  // one new gradient may be an operand of another
    for (auto& output : graph_.outputs) {
      if (output.value.defined()) resolve(output.value);
    }
    // Ops of the pattern that read no input (masks) stay where other ops read them.
    const auto made = outputs_of(forward_nodes);
    std::vector<bool> read(graph_.values.size()), stays(graph_.nodes.size());
    const auto mark = [&](ValueId v) { read[v.index] = true; };
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) mark(output.value);
    }
    for (const auto& node : forward_nodes) node.each_operand(mark);
    for (const auto& node : backward_nodes) node.each_operand(mark);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const auto& node = graph_.nodes[n];
      stays[n] = !inside.contains(static_cast<NodeId>(n)) ||
                 std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
                   return v.defined() && read[v.index] && !made.contains(v.index);
                 });
      if (stays[n]) node.each_operand(mark);
    }
    std::vector<NodeId> place(graph_.nodes.size(), -1);
    std::vector<Node> nodes;
    std::vector<NodeId> new_forward(forward_nodes.size());
    const auto insert = [&](size_t n) {
      if (static_cast<NodeId>(n) == first) {
        for (size_t k = 0; k < forward_nodes.size(); ++k) {
          new_forward[k] = static_cast<NodeId>(nodes.size());
          nodes.push_back(std::move(forward_nodes[k]));
        }
      }
      if (static_cast<NodeId>(n) == backward_position) {
        for (auto& node : backward_nodes) {
          const auto of = forward_of.find(node.forward_node);
          node.forward_node = of == forward_of.end() ? new_forward.back() : new_forward[of->second];
          nodes.push_back(std::move(node));
        }
      }
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      insert(n);
      auto& node = graph_.nodes[n];
      if (!stays[n]) continue;
      place[n] = static_cast<NodeId>(nodes.size());
      if (node.forward_node >= 0) {
        const auto moved = place[node.forward_node];
        node.forward_node = moved < 0 && inside.contains(node.forward_node) ? new_forward.back()
                                                                            : moved;
      }
      nodes.push_back(std::move(node));
    }
    insert(graph_.nodes.size());
    graph_.nodes = std::move(nodes);
    for (auto& value : graph_.values) value.producer = -1;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (size_t r = 0; r < graph_.nodes[n].outputs.size(); ++r) {
        const auto v = graph_.nodes[n].outputs[r];
        if (!v.defined()) continue;
        graph_.values[v.index].producer = static_cast<NodeId>(n);
        graph_.values[v.index].result = static_cast<int32_t>(r);
      }
    }
  }

  Graph graph_;
  const RewriteRule& rule_;
  const Graph& pattern_;
  Rewritten& done_;
  std::span<const std::string> within_;
  std::vector<Output> results_, gradients_;
  std::vector<std::vector<ValueId>> terms_;  // by gradient
  std::set<int32_t> depends_;  // values of the pattern that are computed from an input
  std::set<int32_t> seen_;     // first results of the graph that have been tried
};

}  // namespace

Graph rewrite(Graph graph, const RewriteRule& rule, Rewritten& done,
              std::span<const std::string> within) {
  return Rewriter(std::move(graph), rule, done, within).run();
}

}  // namespace perigee::graph
