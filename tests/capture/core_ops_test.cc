// Every op that LibTorch tags as core is called once under capture, with these arguments or with
// some that follow from its schema, and compared with its kernel: results, their shapes and dtypes,
// and gradients.
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <set>

#include "capture/record/op.h"
#include "tests/capture/support.h"

namespace perigee::test {
namespace {

using Values = std::vector<c10::IValue>;
using Ints = std::vector<int64_t>;
using Doubles = std::vector<double>;
using Tensors = std::vector<at::Tensor>;
const c10::IValue none;

at::Tensor bits(at::IntArrayRef sizes) { return integers(2, sizes).to(torch::kBool); }

c10::IValue optionals(const Tensors& tensors) {
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& t : tensors) list.push_back(t.defined() ? std::optional(t) : std::nullopt);
  return list;
}

c10::IValue mask(size_t size) {
  c10::List<bool> list;
  list.resize(size, true);
  return list;
}

// Positional arguments by op. Those left out have their defaults.
std::map<std::string, Values> arguments() {
  const auto x = normal({2, 3}), image = normal({2, 3, 6, 4}), volume = normal({2, 3, 4, 4, 4});
  const auto whole = integers(9, {2, 3}), row = torch::tensor({1, 0, 1});
  const auto rows = torch::tensor({{1, 0, 1}});
  const Ints two = {2, 2}, three = {2, 2, 2}, zero = {0, 0}, one = {1, 1};
  const auto pooled = at::max_pool2d_with_indices(image, two);
  const auto normed = at::native_layer_norm(x, Ints{3}, {}, {}, 1e-5);
  const auto grouped = at::native_group_norm(image, {}, {}, 2, 3, 24, 3, 1e-5);
  const auto filter = normal({4, 3, 3, 3});
  const auto channels = uniform({3});
  const auto half = torch::kFloat32;
  return {
      {"aten::_adaptive_avg_pool2d", {image, two}},
      {"aten::_adaptive_avg_pool2d_backward", {normal({2, 3, 2, 2}), image}},
      {"aten::_adaptive_avg_pool3d", {volume, three}},
      {"aten::_cdist_forward", {x, normal({4, 3}), 2.0, none}},
      {"aten::_embedding_bag",
       {normal({5, 3}), torch::tensor({0, 1, 4, 2}), torch::tensor({0, 2}), false, 1}},
      {"aten::_fft_c2r", {normal({2, 3, 2}), Ints{1}, 2, 4}},
      {"aten::_fft_r2c", {x, Ints{1}, 0, true}},
      {"aten::_log_softmax", {x, 1, false}},
      {"aten::_native_batch_norm_legit",
       {image, channels, channels, channels * 1, channels * 2, true, 0.1, 1e-5}},
      {"aten::_native_batch_norm_legit.no_stats", {image, channels, channels, true, 0.1, 1e-5}},
      {"aten::_native_batch_norm_legit_no_training",
       {image, channels, channels, channels, channels, 0.1, 1e-5}},
      {"aten::_pdist_forward", {x}},
      {"aten::_softmax", {x, 1, false}},
      {"aten::_to_copy", {x, half}},
      {"aten::acosh", {uniform({2, 3}) + 1.5}},
      {"aten::adaptive_avg_pool1d", {normal({2, 3, 4}), Ints{2}}},
      {"aten::addmm", {x, normal({2, 4}), normal({4, 3})}},
      {"aten::amax", {x, Ints{1}}},
      {"aten::amin", {x, Ints{1}}},
      {"aten::any.dim", {x, 1}},
      {"aten::arange.start_step", {1, 7, 2}},
      {"aten::as_strided", {x, Ints{3, 2}, Ints{1, 3}}},
      {"aten::avg_pool1d", {normal({2, 3, 4}), Ints{2}}},
      {"aten::avg_pool2d", {image, two}},
      {"aten::avg_pool2d_backward",
       {normal({2, 3, 3, 2}), image, two, two, zero, false, true, none}},
      {"aten::avg_pool3d", {volume, three}},
      {"aten::bitwise_and.Scalar", {whole, 3}},
      {"aten::bitwise_and.Tensor", {whole, row}},
      {"aten::bitwise_not", {whole}},
      {"aten::bitwise_or.Scalar", {whole, 3}},
      {"aten::bitwise_or.Tensor", {whole, row}},
      {"aten::bitwise_xor.Scalar", {whole, 3}},
      {"aten::bitwise_xor.Tensor", {whole, row}},
      {"aten::bmm", {normal({2, 3, 4}), normal({2, 4, 5})}},
      {"aten::cat", {c10::List<at::Tensor>({x, normal({2, 1})}), 1}},
      {"aten::clamp", {x, -0.5, 0.5}},
      {"aten::clamp.Tensor", {x, at::zeros({3}, torch::kFloat64), at::ones({3}, torch::kFloat64)}},
      {"aten::col2im", {normal({2, 12, 6}), Ints{6, 4}, two, one, zero, two}},
      {"aten::constant_pad_nd", {x, Ints{1, 2}}},
      {"aten::convolution", {image, filter, normal({4}), one, one, one, false, zero, 1}},
      {"aten::convolution_backward",
       {normal({2, 4, 6, 4}), image, filter, Ints{4}, one, one, one, false, zero, 1, mask(3)}},
      {"aten::copy", {x, normal({2, 3})}},
      {"aten::cumsum", {x, 1}},
      {"aten::diagonal", {x}},
      {"aten::embedding", {normal({5, 3}), torch::tensor({0, 4, 2})}},
      {"aten::embedding_dense_backward", {x, torch::tensor({0, 4}), 5, -1, false}},
      {"aten::empty.memory_format", {Ints{2, 3}}},
      {"aten::empty_strided", {Ints{2, 3}, Ints{3, 1}}},
      {"aten::expand", {normal({2, 1}), Ints{4, 2, 3}}},
      {"aten::flip", {x, Ints{1}}},
      {"aten::full", {Ints{2, 3}, 1.5}},
      {"aten::gather", {x, 0, rows}},
      {"aten::grid_sampler_2d", {image, uniform({2, 5, 4, 2}), 0, 0, false}},
      {"aten::index.Tensor", {x, optionals({{}, row})}},
      {"aten::index_put", {x, optionals({{}, torch::tensor({2, 0})}), normal({2, 2})}},
      {"aten::index_select", {x, 1, row}},
      {"aten::masked_scatter", {x, bits({2, 3}), normal({6})}},
      {"aten::max.dim", {x, 1}},
      {"aten::max_pool2d_with_indices", {image, two}},
      {"aten::max_pool2d_with_indices_backward",
       {normal({2, 3, 3, 2}), image, two, two, zero, one, false, std::get<1>(pooled)}},
      {"aten::max_pool3d_with_indices", {volume, three}},
      {"aten::mean.dim", {x, Ints{1}}},
      {"aten::min.dim", {x, 1}},
      {"aten::mm", {x, normal({3, 4})}},
      {"aten::native_dropout", {x, 0.5, true}},
      {"aten::native_group_norm", {image, channels, channels, 2, 3, 24, 3, 1e-5}},
      {"aten::native_group_norm_backward",
       {image, image, std::get<1>(grouped), std::get<2>(grouped), channels, 2, 3, 24, 3, mask(3)}},
      {"aten::native_layer_norm", {x, Ints{3}, channels, channels, 1e-5}},
      {"aten::native_layer_norm_backward",
       {x, x, Ints{3}, std::get<1>(normed), std::get<2>(normed), channels, channels, mask(3)}},
      {"aten::permute", {volume, Ints{4, 0, 2, 1, 3}}},
      {"aten::prod.dim_int", {x, 1}},
      {"aten::rand", {Ints{2, 3}}},
      {"aten::randn", {Ints{2, 3}}},
      {"aten::reflection_pad1d", {x, Ints{1, 2}}},
      {"aten::reflection_pad2d", {image, Ints{1, 2, 3, 0}}},
      {"aten::reflection_pad3d", {volume, Ints{1, 2, 3, 0, 1, 1}}},
      {"aten::repeat", {x, Ints{2, 1, 3}}},
      {"aten::replication_pad2d", {image, Ints{1, 2, 3, 0}}},
      {"aten::replication_pad3d", {volume, Ints{1, 2, 3, 0, 1, 1}}},
      {"aten::scatter.src", {x, 0, rows, normal({1, 3})}},
      {"aten::scatter.value", {x, 0, rows, 2.5}},
      {"aten::scatter_add", {x, 0, rows, normal({1, 3})}},
      {"aten::scatter_reduce.two", {x, 0, rows, normal({1, 3}), "sum"}},
      {"aten::select.int", {x, 1, 2}},
      {"aten::select_scatter", {x, normal({2}), 1, 2}},
      {"aten::slice.Tensor", {x, 1, 1, 3}},
      {"aten::slice_scatter", {x, normal({2, 2}), 1, 1, 3}},
      {"aten::split_with_sizes", {x, Ints{1, 2}, 1}},
      {"aten::squeeze.dim", {normal({2, 1, 3}), 1}},
      {"aten::squeeze.dims", {normal({2, 1, 3, 1}), Ints{1, 3}}},
      {"aten::sum.dim_IntList", {x, Ints{1}}},
      {"aten::sym_size.int", {x, 1}},
      {"aten::sym_stride.int", {x, 0}},
      {"aten::topk", {x, 2}},
      {"aten::unsqueeze", {x, 1}},
      {"aten::upsample_bilinear2d.vec", {image, none, false, Doubles{2.0, 1.5}}},
      {"aten::upsample_nearest2d.vec", {image, Ints{9, 5}, none}},
      {"aten::var.dim", {x, Ints{1}}},
      {"aten::view", {x, Ints{3, 2}}},
      {"aten::where.self", {bits({2, 3}), x, normal({3})}},
  };
}

// Arguments that follow from the schema: tensors in (0, 1), numbers 0.5.
Values default_arguments(const c10::FunctionSchema& schema) {
  Values values;
  for (const auto& argument : schema.arguments()) {
    if (argument.default_value()) {
      values.push_back(*argument.default_value());
    } else if (argument.type()->kind() == c10::TypeKind::TensorType) {
      values.push_back(uniform(values.empty() ? Ints{2, 3} : Ints{3}));
    } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {
      values.push_back(argument.name() == "rounding_mode" ? c10::IValue("floor") : none);
    } else {
      values.push_back(at::Scalar(0.5));
    }
  }
  return values;
}

// The op as a layer: its tensors are the inputs, the last one is an operand of the loss alone.
// Complex operands and results are pairs of reals.
Layer layer_of(const c10::OperatorHandle& op, Values values, at::ScalarType type,
               bool differentiated) {
  const auto& schema = op.schema();
  for (size_t i = values.size(); i < schema.arguments().size(); ++i) {
    values.push_back(schema.arguments()[i].default_value().value_or(none));
  }
  Tensors inputs;
  const auto take = [&](const at::Tensor& tensor) {
    inputs.push_back(tensor.is_floating_point() ? tensor.to(type) : tensor);
    return tensor;
  };
  for (auto& value : values) tracing::each_tensor(value, take);
  inputs.push_back(at::ones({}, type));
  const bool has_values = schema.name().find("aten::empty") != 0;
  const bool of_complex = schema.name() == "aten::_fft_c2r";
  auto run = [=](const Tensors& in) -> Tensors {
    auto stack = values;
    size_t next = 0;
    for (size_t i = 0; i < stack.size(); ++i) {
      const auto* alias = op.schema().arguments()[i].alias_info();
      tracing::each_tensor(stack[i], [&](const at::Tensor&) {
        const auto& given = in[next++];
        const auto tensor = differentiated ? given : given.detach();
        if (alias && alias->isWrite()) return tensor.detach().clone();
        return of_complex ? at::view_as_complex(tensor) : tensor;
      });
    }
    op.callBoxed(stack);
    Tensors results;
    const auto give = [&](const at::Tensor& result) {
      if (!result.defined()) return;
      results.push_back(!has_values           ? at::zeros_like(result)
                        : result.is_complex() ? at::view_as_real(result)
                                              : result);
    };
    for (const auto& value : stack) {
      if (value.isTensor()) {
        give(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& result : value.toTensorVector()) give(result);
      } else {  // a size
        give(in.back() * (value.isInt() ? value.toInt() : int64_t{value.toBool()}));
      }
    }
    results.push_back(in.back() * 2);
    return results;
  };
  return {schema.name(), nullptr, inputs, run};
}

// Whether LibTorch has kernels for the layer's type, forward and backward.
bool runs(const Layer& layer) {
  const auto model = model_of(layer);
  try {
    eager(*model.module, model.batch, model.forward);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// Ops that LibTorch cannot differentiate with respect to all of their operands.
const std::set<std::string>& forward_alone() {
  static const std::set<std::string> ops = {"aten::_native_batch_norm_legit_no_training",
                                            "aten::copy", "aten::native_group_norm_backward",
                                            "aten::native_layer_norm_backward"};
  return ops;
}

// Their statistics are float, as on a GPU and with float weights; the CPU's are bfloat16 here.
bool has_other_statistics(const std::string& op, at::ScalarType type) {
  return type == torch::kBFloat16 &&
         (op.starts_with("aten::_native_batch_norm_legit") || op == "aten::native_layer_norm");
}

// Ops without a graph.
const std::set<std::string>& refused() {
  static const std::set<std::string> ops = {"aten::_local_scalar_dense", "aten::atan2.out",
                                            "aten::nonzero", "aten::randperm", "aten::resize_"};
  return ops;
}

}  // namespace

TEST_CASE("every op that LibTorch tags as core is captured as it runs, or refused with a reason") {
  const auto given = arguments();
  const std::vector<std::pair<at::ScalarType, double>> types = {
      {torch::kFloat64, 1e-12}, {torch::kFloat32, 1e-5}, {torch::kBFloat16, 3e-2}};
  size_t compared = 0, narrow = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !op->hasTag(at::Tag::core)) continue;
    const auto text = c10::toString(name);
    if (refused().contains(text)) {
      INFO(text);
      CHECK(tracing::Op(*op).refusal != nullptr);
      continue;
    }
    const auto found = given.find(text);
    const auto values = found == given.end() ? default_arguments(op->schema()) : found->second;
    for (const auto& [type, tolerance] : types) {
      INFO(text << " in " << c10::toString(type));
      if (has_other_statistics(text, type)) continue;
      const auto layer = layer_of(*op, values, type, !forward_alone().contains(text));
      if (type == torch::kBFloat16 && !runs(layer)) continue;  // LibTorch has no such kernel
      CHECK_NOTHROW(check_layer(layer, tolerance));
      ++(type == torch::kBFloat16 ? narrow : compared);
    }
  }
  CHECK(compared > 2 * 175);
  CHECK(narrow > 130);
}

TEST_CASE("a captured op that differs from the one that runs is detected") {
  bool captures = true;
  const Layer layer{"other", nullptr, {normal({2, 3})}, [&](const Tensors& in) -> Tensors {
                      return {in[0].sum(captures ? 1 : 0)};
                    }};
  const auto model = model_of(layer);
  const auto captured = capture(*model.module, model.batch, model.forward);
  const auto got = evaluate(*model.module, captured, model.batch);
  captures = false;
  CHECK(difference(eager(*model.module, model.batch, model.forward), got, 1e-12) != "");
}

}  // namespace perigee::test
