// fp8: linear layers multiply eight-bit floats.
#include <algorithm>

#include "base/error.h"
#include "graph/ops.h"
#include "methods/method.h"
#include "methods/names.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

using plan::Fp8;

constexpr std::string_view kLeftOut =
    "left out: the devices have no eight-bit products, and fp8_emulate is false";

// Returns the one of the values that the field names; `otherwise` where it is left out. `names`:
// others that it may be.
template <class T>
T choice(const Config& config, const char* field, std::initializer_list<T> values, T otherwise,
         std::vector<std::string> names = {}) {
  if (!config.fields.contains(field)) return otherwise;
  const auto text = config.fields[field].get<std::string>();
  for (const T value : values) {
    if (plan::name_of(value) == text) return value;
    names.emplace_back(plan::name_of(value));
  }
  fail("fp8", "{} must be one of {}, but got \"{}\"{}", field, join(names), text,
       did_you_mean(text, names));
}

// Returns how factors are multiplied, as `product` says or by what the devices can.
Fp8::Product product_of(const Config& config, const Request& request, const Fp8& fp8) {
  using Product = Fp8::Product;
  const bool blocks = fp8.recipe == Fp8::Recipe::blockwise;
  if (config.fields.value("product", "auto") == "auto") {
    return request.eight_bits && !blocks && fp8.reduce_amax ? Product::native : Product::emulated;
  }
  const auto product =
      choice(config, "product", {Product::emulated, Product::native}, Product::emulated, {"auto"});
  if (product == Product::emulated) return product;
  if (blocks) {
    fail("fp8",
         "a native product has one scale for each factor, but fp8_recipe is blockwise (product = "
         "\"emulated\", or fp8_recipe = \"delayed\" or \"tensorwise\")");
  }
  if (!fp8.reduce_amax) {
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
  return product;
}

class Fp8Method : public Method {
 public:
  std::string_view name() const override { return "fp8"; }
  std::string_view doc() const override {
    return "Linear layers multiply eight-bit floats (E4M3, or E5M2 for gradients) and sum in the "
           "type that they had: their inputs, weights and gradients are scaled, rounded to nearest "
           "even and saturated, exactly as such a device would. A device that multiplies such "
           "numbers does; elsewhere products are emulated. Parameters and the optimizer's state "
           "stay as they are. Names and defaults are Megatron's.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"fp8", "string", "`e4m3` or `hybrid` (E5M2 for gradients); default e4m3"},
        {"match", "any", "scopes (`blocks.*`) or module types of the layers; default all"},
        {"fp8_recipe", "string",
         "`delayed` (a tensor's scale is that of earlier microbatches), `tensorwise` (its own) or "
         "`blockwise` (one for each fp8_block numbers that are summed over); default delayed"},
        {"fp8_margin", "integer", "room above the largest magnitude, in powers of two; default 0"},
        {"fp8_amax_history_len", "integer", "delayed: microbatches looked back on; default 1"},
        {"fp8_amax_compute_algo", "string",
         "delayed: `most_recent` or `max` of these; default most_recent"},
        {"fp8_interval", "integer", "delayed: microbatches that a scale serves; default 1"},
        {"fp8_reduce_amax", "boolean",
         "false: each rank scales its part of a tensor by that part's own magnitudes, and nothing "
         "is sent (delayed, tensorwise); not what one device does. Default true"},
        {"fp8_emulate", "boolean",
         "false: on devices that have no eight-bit products the method is left out, with a "
         "warning; default true"},
        {"fp8_block", "integer", "blockwise: default 128"},
        {"fp8_wgrad", "boolean",
         "false: weights' gradients are products of what was not rounded; "
         "default true"},
        {"product", "string",
         "`native` (the device multiplies eight-bit floats itself), `emulated` (they are widened "
         "first) or `auto`: native where the device can and the recipe is not blockwise; default "
         "auto"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    using Recipe = Fp8::Recipe;
    Fp8 fp8;
    const auto& fields = config.fields;
    fp8.format = choice(config, "fp8", {Fp8::Format::e4m3, Fp8::Format::hybrid}, fp8.format);
    fp8.recipe = choice(config, "fp8_recipe",
                        {Recipe::delayed, Recipe::tensorwise, Recipe::blockwise}, fp8.recipe);
    fp8.amax_compute_algo = choice(config, "fp8_amax_compute_algo",
                                   {Fp8::Amax::most_recent, Fp8::Amax::max}, fp8.amax_compute_algo);
    fp8.margin = fields.value("fp8_margin", fp8.margin);
    fp8.amax_history_len = fields.value("fp8_amax_history_len", fp8.amax_history_len);
    fp8.interval = fields.value("fp8_interval", fp8.interval);
    fp8.reduce_amax = fields.value("fp8_reduce_amax", fp8.reduce_amax);
    fp8.block = fields.value("fp8_block", fp8.block);
    fp8.wgrad = fields.value("fp8_wgrad", fp8.wgrad);
    const auto belongs = [&](const char* field, Recipe recipe) {
      if (!fields.contains(field) || fp8.recipe == recipe) return;
      fail("fp8", "{} belongs to the recipe {}, but fp8_recipe is {}", field, plan::name_of(recipe),
           plan::name_of(fp8.recipe));
    };
    belongs("fp8_amax_history_len", Recipe::delayed);
    belongs("fp8_amax_compute_algo", Recipe::delayed);
    belongs("fp8_interval", Recipe::delayed);
    belongs("fp8_block", Recipe::blockwise);
    if (!fp8.reduce_amax && fp8.recipe == Recipe::blockwise) {
      fail("fp8", "fp8_reduce_amax is of the recipes delayed and tensorwise, but got blockwise");
    }
    fp8.product = product_of(config, request, fp8);
    if (fp8.recipe == Recipe::delayed && plan.pipeline.cuts()) {
      fail("fp8",
           "delayed scaling keeps a history that all ranks have, but the stages of "
           "pipeline_parallel have layers of their own (fp8_recipe = \"tensorwise\" or "
           "\"blockwise\")");
    }
    if (fields.contains("match")) {
      fp8.scopes = matching_scopes(*request.graph, texts(fields["match"], name(), "match"), name());
    }
    verify(fp8, *request.graph);
    if (!fields.value("fp8_emulate", true) && !request.eight_bits) {
      plan.decisions.push_back({"fp8", std::string(kLeftOut)});
      return;
    }
    plan.decisions.push_back(
        {"fp8",
         fmt::format(
             "linear layers{}{} multiply {}{}, scaled {}{}{}{}{}", fp8.scopes.empty() ? "" : " in ",
             join(fp8.scopes),
             fp8.format == Fp8::Format::e4m3 ? "E4M3" : "E4M3, and E5M2 for gradients",
             fp8.wgrad ? "" : ", but not for weights' gradients",
             fp8.recipe == Recipe::delayed
                 ? fmt::format("by the {} of {} earlier microbatch{}",
                               plan::name_of(fp8.amax_compute_algo), fp8.amax_history_len,
                               fp8.amax_history_len == 1 ? "" : "es")
             : fp8.recipe == Recipe::tensorwise ? "by each tensor's largest magnitude"
                                                : fmt::format("by blocks of {}", fp8.block),
             fp8.margin ? fmt::format(" with a margin of 2^{}", fp8.margin) : "",
             fp8.interval > 1 ? fmt::format(" anew every {} microbatches", fp8.interval) : "",
             fp8.reduce_amax ? "" : ", on each rank by what it has",
             fp8.product == Fp8::Product::native
                 ? fmt::format(
                       "; the device multiplies them itself where sizes are multiples of {}",
                       graph::kEightBitMultiple)
                 : "")});
    plan.fp8 = std::move(fp8);
  }
};

}  // namespace

std::shared_ptr<const Method> fp8() { return std::make_shared<Fp8Method>(); }

}  // namespace perigee::methods
