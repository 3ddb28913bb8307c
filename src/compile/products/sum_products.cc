#include "compile/products/sum_products.h"

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/draft/instance.h"
#include "compile/draft/layout.h"

namespace perigee::compile {
namespace {

using graph::DType;

// A term of a sum, which nothing else reads.
struct Term {
  ValueId value;    // of the sum's type; undefined: a product of 16 bits in a sum of float32
  size_t made = 0;  // the instruction after which it is there
  std::optional<size_t> product;  // the product that it is
  std::optional<size_t> cast;     // of the product's result to the sum's type
};

class SumProducts {
 public:
  SumProducts(Draft& draft, std::vector<DraftInstruction>& list, std::vector<int>& reads,
              const std::set<int32_t>& bound, TraceSource& traces)
      : draft_(draft), list_(list), reads_(reads), bound_(bound), traces_(traces) {}

  void run() {
    for (size_t i = 0; i < list_.size(); ++i) {
      if (add(i)) continue;
      for (const auto v : list_[i].instruction.outputs) {
        if (v.defined()) writer_[draft_.root(v).index] = i;
      }
    }
    size_t i = 0;
    std::erase_if(list_, [&](const auto&) { return gone_.contains(i++); });
  }

 private:
  // Lets a product do the addition i. Returns whether it does.
  bool add(size_t i) {
    const auto& part = list_[i];
    const auto& args = part.instruction.args;
    if (part.instruction.op != "aten::add.Tensor" || args.size() != 2) return false;
    const auto sum = part.instruction.outputs[0];
    if (!sum.defined() || draft_.root(sum) != sum || !is_memory(sum) || !draft_.is_plain(sum)) {
      return false;
    }
    const auto a = find(args[0].second, i, sum), b = find(args[1].second, i, sum);
    if (!a || !b) return false;
    const auto adds = [](const Term& product, const Term& other) {
      return product.product && *product.product > other.made;
    };
    if (!adds(*a, *b) && !adds(*b, *a)) return false;
    const auto& [product, other] = adds(*a, *b) ? std::pair(*a, *b) : std::pair(*b, *a);
    const auto memory = other.value.defined() ? other.value : sum;
    if (memory != sum) show(sum, memory);
    if (other.cast || !other.value.defined()) {
      write(*other.product, "perigee::mm_", memory);
      if (other.cast) gone_.insert(*other.cast);
    }
    write(*product.product, "perigee::addmm_", memory);
    if (product.cast) gone_.insert(*product.cast);
    gone_.insert(i);
    writer_[draft_.root(memory).index] = *product.product;
    return true;
  }

  // Returns the term of the addition i, or nothing where its memory cannot hold the sum.
  std::optional<Term> find(const graph::Arg& argument, size_t i, ValueId sum) const {
    const auto* v = std::get_if<ValueId>(&argument);
    if (!v || !v->defined()) return {};
    const auto &type = draft_.value(*v).type, &wanted = draft_.value(sum).type;
    const auto made = type.shape == wanted.shape ? maker_of(*v, i) : std::nullopt;
    if (!made) return {};
    const auto product = product_of(*v, *made);
    const bool widens = wanted.dtype == DType::float32 && graph::is_half(type.dtype);
    if (type.dtype != wanted.dtype) {
      return widens && product ? std::optional(Term{{}, *made, product, {}}) : std::nullopt;
    }
    const auto& maker = list_[*made].instruction;
    if (maker.op == "perigee::cast" && !maker.in_place && wanted.dtype == DType::float32) {
      const auto low = std::get<ValueId>(maker.args[0].second);
      const auto before = maker_of(low, i);
      const auto of_low = before ? product_of(low, *before) : std::nullopt;
      if (of_low && graph::is_half(draft_.value(low).type.dtype)) {
        return Term{*v, *before, of_low, *made};
      }
    }
    return Term{*v, *made, product, {}};
  }

  // Returns the instruction that writes the value last, where only one instruction reads it, and
  // both run in the same microbatches as the addition i.
  std::optional<size_t> maker_of(ValueId v, size_t i) const {
    const auto root = draft_.root(v);
    if (reads_[root.index] != 1 || !draft_.is_plain(v) || !is_memory(root)) return {};
    const auto found = writer_.find(root.index);
    if (found == writer_.end() || list_[found->second].when != list_[i].when) return {};
    return found->second;
  }

  std::optional<size_t> product_of(ValueId v, size_t maker) const {
    const auto& instruction = list_[maker].instruction;
    const bool plain = instruction.op == "aten::mm" && instruction.args.size() == 2 &&
                       instruction.outputs[0] == draft_.root(v);
    return plain ? std::optional(maker) : std::nullopt;
  }

  // Returns whether the value has scratch memory, which nothing outside of the program reads.
  bool is_memory(ValueId root) const {
    const auto& home = draft_.homes[root.index];
    return home.kind == Home::Kind::scratch && !home.outlives && !home.host &&
           !bound_.contains(root.index);
  }

  // Replaces the product i by one that writes to the value.
  void write(size_t i, std::string_view op, ValueId to) {
    const auto& product = list_[i];
    const graph::TensorType type{draft_.value(to).type.dtype,
                                 draft_.value(product.instruction.outputs[0]).type.shape};
    const auto target = draft_.add_view(to, 0, type, contiguous_strides(type.shape),
                                        draft_.value(to).name);
    auto args = product.instruction.args;
    args.insert(args.begin(), {"sum", target});
    auto made = in_place(std::string(op), std::move(args), {target});
    made.when = product.when;
    made.instruction.scope = product.instruction.scope;
    made.instruction.phase = product.instruction.phase;
    set_allocations(draft_, made, traces_);
    list_[i] = std::move(made);
  }

  // Makes the value, and its views, views of all of `of`.
  void show(ValueId value, ValueId of) {
    const auto root = draft_.root(of);
    for (int32_t v = 0; v < std::ssize(draft_.program.values); ++v) {
      if (v == value.index || draft_.value({v}).view_of == value) draft_.value({v}).view_of = root;
    }
    reads_[root.index] = reads_[value.index];
  }

  Draft& draft_;
  std::vector<DraftInstruction>& list_;
  std::vector<int>& reads_;         // by root
  const std::set<int32_t>& bound_;  // roots
  TraceSource& traces_;
  std::map<int32_t, size_t> writer_;  // by root: the last one so far
  std::set<size_t> gone_;
};

}  // namespace

void sum_products(Draft& draft, TraceSource& traces) {
  auto reads = count_reads(draft);
  std::set<int32_t> bound;
  for (const auto& binding : draft.program.bindings) {
    if (binding.value.defined()) bound.insert(draft.root(binding.value).index);
  }
  for (auto& section : draft.sections) {
    SumProducts(draft, section.instructions, reads, bound, traces).run();
  }
}

}  // namespace perigee::compile
