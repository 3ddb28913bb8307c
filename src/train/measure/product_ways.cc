#include "train/measure/product_ways.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "compile/products/product_ways.h"
#include "exec/kernels/product/product.h"
#include "exec/tensor.h"
#include "simulate/op_cost.h"

namespace perigee::train {
namespace {

constexpr double kGain = 0.9;  // of the usual way's time; two runs differ by less

// The time of all instructions of a product, if it is known.
struct Seconds {
  double sum = 0;
  bool known = true;
  void add(std::optional<double> seconds) {
    sum += seconds.value_or(0);
    known = known && seconds.has_value();
  }
};

struct Product {
  std::string other_way;
  Seconds usual, other;
};

// Returns the products with two ways, by name.
std::map<std::string, Product> products_of(const compile::Programs& programs,
                                           cost::Measurements& times) {
  std::map<std::string, Product> products;
  for (const auto& program : programs.programs) {
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        const auto product = compile::product_of(program, instruction);
        if (!product) continue;
        const auto [factors, m, k, n, bias] = *product;
        const auto way = exec::kernels::other_way(exec::scalar_type(factors), m, n, k, bias);
        if (way.empty()) continue;
        auto& found = products[plan::product_name(factors, m, k, n, bias)];
        found.other_way = way;
        auto instance = simulate::instance_of(program, instruction);
        std::erase_if(instance.args, [](const auto& arg) { return arg.first == "way"; });
        found.usual.add(times.op(compile::key(instance)));
        instance.args.emplace_back("way", found.other_way);
        found.other.add(times.op(compile::key(instance)));
      }
    }
  }
  return products;
}

}  // namespace

bool take_faster_ways(plan::Plan& plan, const compile::Programs& programs,
                      cost::Measurements& times) {
  std::map<std::string, std::string> ways;
  for (const auto& [name, product] : products_of(programs, times)) {
    const auto& [way, usual, other] = product;
    if (usual.known && other.known && other.sum < kGain * usual.sum) ways[name] = way;
  }
  if (ways == plan.products) return false;
  plan.products = std::move(ways);
  plan.decisions.push_back(
      {"profile", fmt::format("{} kinds of matrix products are computed in their other way, which "
                              "was measured to be faster",
                              plan.products.size())});
  return true;
}

std::map<std::string, std::string> ways_to_measure(const compile::Programs& programs,
                                                   cost::Measurements& times, bool all) {
  std::map<std::string, std::string> ways;
  for (const auto& [name, product] : products_of(programs, times)) {
    if (all || !product.usual.known || !product.other.known) ways[name] = product.other_way;
  }
  return ways;
}

}  // namespace perigee::train
