// fp8: linear layers multiply eight-bit floats.
#include <algorithm>

#include "base/fail.h"
#include "graph/ops.h"
#include "methods/field_table.h"
#include "methods/names.h"

namespace perigee::methods {
namespace {

using plan::Fp8;

constexpr std::string_view kLeftOut =
    "left out: the devices have no eight-bit products, and fp8_emulate is false";

enum class ProductChoice : unsigned char { automatic, emulated, native };

// The plan's description, and the fields beside it.
struct Fp8Config : Fp8 {
  Names match;
  bool emulate = true;
  ProductChoice product_choice = ProductChoice::automatic;
};

// Returns how factors are multiplied: as the config gives it, or by the devices' abilities.
Fp8::Product product_of(const Fp8Config& given, const PlanRequest& request) {
  using Product = Fp8::Product;
  const bool blocks = given.recipe == Fp8::Recipe::blockwise;
  if (given.product_choice == ProductChoice::automatic) {
    return request.eight_bits && !blocks && given.reduce_amax ? Product::native : Product::emulated;
  }
  if (given.product_choice == ProductChoice::emulated) return Product::emulated;
  if (blocks) {
    fail("fp8",
         "a native product has one scale for each factor or each of its rows, but fp8_recipe is "
         "blockwise (product = \"emulated\", or another fp8_recipe)");
  }
  if (!given.reduce_amax) {
    fail("fp8",
         "a native product has one scale for each factor over all ranks, but fp8_reduce_amax is "
         "false (product = \"emulated\")");
  }
  if (!request.eight_bits) {
    fail("fp8",
         "product = \"native\" needs devices that multiply eight-bit floats (GPUs of compute "
         "capability 8.9 or later, or a cluster whose `peak` has float8_e4m3), but these do not: "
         "use \"auto\" or \"emulated\"");
  }
  return Product::native;
}

std::string source_of_scales(const Fp8& fp8) {
  switch (fp8.recipe) {
    case Fp8::Recipe::delayed:
      return fmt::format("by the {} of {} earlier microbatch{}",
                         plan::name_of(fp8.amax_compute_algo), fp8.amax_history_len,
                         fp8.amax_history_len == 1 ? "" : "es");
    case Fp8::Recipe::tensorwise:
      return "by each tensor's largest magnitude";
    case Fp8::Recipe::rowwise:
      return "by the largest magnitude of each row";
    case Fp8::Recipe::blockwise:
      break;
  }
  return fmt::format("by blocks of {}", fp8.block);
}

class Fp8Method : public MethodWith<Fp8Config> {
 public:
  std::string_view name() const override { return "fp8"; }
  std::string_view doc() const override {
    return "Linear layers multiply eight-bit floats (E4M3, or E5M2 for gradients) and sum in the "
           "type that they had: their inputs, weights and gradients are scaled, rounded to nearest "
           "even and saturated. Devices with eight-bit products compute them; elsewhere they are "
           "emulated, with the same roundings. Parameters and the optimizer state keep their "
           "types. Names and defaults are Megatron's.";
  }

 protected:
  const FieldTable<Fp8Config>& table() const override {
    using C = Fp8Config;
    static const FieldTable<C> table(
        {{.name = "fp8",
          .member = &C::format,
          .allowed = {"e4m3", "hybrid"},
          .doc = "format; hybrid: E5M2 for gradients"},
         {.name = "match",
          .member = &C::match,
          .otherwise = "all",
          .doc = "scopes (`blocks.*`) or module types of the layers"},
         {.name = "fp8_recipe",
          .member = &C::recipe,
          .allowed = {"delayed", "tensorwise", "rowwise", "blockwise"},
          .doc = "source of a scale: delayed: the tensor in earlier microbatches; tensorwise: the "
                 "tensor itself; rowwise: all elements along the summed dim, each row its own; "
                 "blockwise: each block of fp8_block elements along the summed dim"},
         {.name = "fp8_margin",
          .member = &C::margin,
          .at_least = 0,
          .at_most = 64,
          .doc = "headroom above the largest magnitude, in powers of two"},
         {.name = "fp8_amax_history_len",
          .member = &C::amax_history_len,
          .at_least = 1,
          .at_most = 65536,
          .doc = "delayed: microbatches of the history"},
         {.name = "fp8_amax_compute_algo",
          .member = &C::amax_compute_algo,
          .allowed = {"most_recent", "max"},
          .doc = "delayed: which magnitude of the history decides"},
         {.name = "fp8_interval",
          .member = &C::interval,
          .at_least = 1,
          .at_most = 65536,
          .doc = "delayed: microbatches that use one scale"},
         {.name = "fp8_reduce_amax",
          .member = &C::reduce_amax,
          .doc =
              "one scale for the whole tensor; false (delayed, tensorwise): each rank scales its "
              "shard by the shard's own magnitudes, without communication: not the result of "
              "one device"},
         {.name = "fp8_emulate",
          .member = &C::emulate,
          .doc = "false: leave the method out, with a warning, on devices without eight-bit "
                 "products"},
         {.name = "fp8_block",
          .member = &C::block,
          .at_least = 1,
          .doc = "blockwise: elements of a block"},
         {.name = "fp8_wgrad",
          .member = &C::wgrad,
          .doc = "false: weight gradients are products of unrounded factors"},
         {.name = "product",
          .member = &C::product_choice,
          .allowed = {"auto", "emulated", "native"},
          .doc = "native: the device multiplies eight-bit floats; emulated: they are widened "
                 "first; auto: native where the device supports it and the recipe is not "
                 "blockwise"}});
    return table;
  }

  void edit(plan::Plan& plan, const Fp8Config& given, const Config& config,
            const PlanRequest& request) const override {
    using Recipe = Fp8::Recipe;
    Fp8 fp8 = given;
    const auto belongs = [&](const char* field, Recipe recipe) {
      if (!config.has(field) || fp8.recipe == recipe) return;
      fail("fp8", "{} requires the recipe {}, but fp8_recipe is {}", field, plan::name_of(recipe),
           plan::name_of(fp8.recipe));
    };
    belongs("fp8_amax_history_len", Recipe::delayed);
    belongs("fp8_amax_compute_algo", Recipe::delayed);
    belongs("fp8_interval", Recipe::delayed);
    belongs("fp8_block", Recipe::blockwise);
    if (!fp8.reduce_amax && !plan::scales_tensors(fp8.recipe)) {
      fail("fp8",
           "fp8_reduce_amax = false requires the recipe delayed or tensorwise, but fp8_recipe is "
           "{}",
           plan::name_of(fp8.recipe));
    }
    fp8.product = product_of(given, request);
    if (fp8.recipe == Recipe::delayed && plan.pipeline.cuts()) {
      fail("fp8",
           "delayed scaling requires that all ranks have the same layers, but the stages of "
           "pipeline_parallel have their own (fp8_recipe = \"tensorwise\", \"rowwise\" or "
           "\"blockwise\")");
    }
    if (config.has("match")) {
      fp8.scopes = matching_scopes(*request.graph, given.match.list, name());
    }
    verify(fp8, *request.graph);
    if (!given.emulate && !request.eight_bits) {
      plan.decisions.push_back({"fp8", std::string(kLeftOut)});
      return;
    }
    plan.decisions.push_back(
        {"fp8",
         fmt::format("linear layers{}{} multiply {}{}, scaled {}{}{}{}{}",
                     fp8.scopes.empty() ? "" : " in ", join(fp8.scopes),
                     fp8.format == Fp8::Format::e4m3 ? "E4M3" : "E4M3, and E5M2 for gradients",
                     fp8.wgrad ? "" : ", but not for weights' gradients", source_of_scales(fp8),
                     fp8.margin ? fmt::format(" with a margin of 2^{}", fp8.margin) : "",
                     fp8.interval > 1 ? fmt::format(", every {} microbatches", fp8.interval) : "",
                     fp8.reduce_amax ? "" : ", on each rank by its own shard",
                     fp8.product == Fp8::Product::native
                         ? fmt::format("; the device multiplies them itself where sizes are "
                                       "multiples of {}{}",
                                       graph::kEightBitMultiple,
                                       fp8.recipe == Recipe::rowwise
                                           ? ", the result is bfloat16 and the second factor E4M3"
                                           : "")
                         : "")});
    plan.fp8 = std::move(fp8);
  }
};

}  // namespace

std::shared_ptr<const Method> fp8() { return std::make_shared<Fp8Method>(); }

}  // namespace perigee::methods
