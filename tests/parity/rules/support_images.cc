// Cases of attention, convolution and image ops.
#include "tests/parity/rules/support_parts.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::TensorType;
using graph::ValueId;
using Ints = std::vector<int64_t>;

TensorType real_type(Shape shape) { return {graph::DType::float64, std::move(shape)}; }

// `ring`: keys and values are sharded on their sequence in the same way. `documents`: queries see
// keys with their own number.
void attention(Cases& cases, const char* name, bool ring, bool documents) {
  cases[name] = [ring, documents](Case& c) {
    const int64_t b = c.size(4), g = c.any(1, 3), h = g * c.any(1, 3), d = c.any(1, 3),
                  e = c.any(1, 3);
    const bool causal = c.coin(), zigzag = c.coin();
    const auto axis = static_cast<size_t>(c.any(0, std::ssize(c.mesh_.axes) - 1));
    const int64_t parts = 2 * c.mesh_.axes[axis].size;
    const auto length = [&] { return ring ? parts * c.any(1, 2) : c.size(5); };
    const int64_t s = length(), t = causal || documents ? s : length();
    const auto keys = [&](int64_t width) {
      const Shape shape = {b, g, t, width};
      return ring ? c.real_sharded(shape, 2, axis, zigzag) : c.real(shape, false);
    };
    const auto query = c.real({b, h, s, d}, false), key = keys(d), value = keys(e);
    ValueId bias;
    if (c.coin()) {
      Shape shape = {c.coin() ? b : 1, c.coin() ? h : 1, s, t};
      if (c.coin(0.2)) shape.erase(shape.begin());
      if (c.coin(0.2)) shape[shape.size() - 2] = 1;
      if (c.coin(0.2)) shape.back() = 1;
      bias = c.real(shape, false);
    }
    Args options = {{"causal", causal},
                    {"scale", 0.7},
                    {"p", c.coin() ? 0.0 : 0.3},
                    {"random_key", int64_t{9}}};
    if (documents) {
      const auto numbers = c.integers({b, s}, 0, 2);
      options.insert(options.end(), {{"documents", numbers}, {"key_documents", numbers}});
    }
    Args args = {{"query", query}, {"key", key}, {"value", value}, {"bias", bias}};
    args.insert(args.end(), options.begin(), options.end());
    const auto out = c.typed("perigee::attention", args,
                             {real_type({b, h, s, e}), real_type({b, h, s})});
    Args back = {{"grad", c.real({b, h, s, e})},
                 {"query", query},
                 {"key", key},
                 {"value", value},
                 {"bias", bias},
                 {"output", out[0]},
                 {"logsumexp", out[1]}};
    back.insert(back.end(), options.begin(), options.end());
    std::vector<TensorType> types = {real_type({b, h, s, d}), real_type({b, g, t, d}),
                                     real_type({b, g, t, e})};
    if (bias.defined()) {
      if (c.coin(0.7)) {
        types.push_back(real_type(c.shape(bias)));
        back.emplace_back("bias_grad", true);
      }
    }
    c.typed("perigee::attention_backward", back, types);
  };
}

// Two calls, so that the second reads what the first has written. Caches are sharded over heads on
// some axes.
void cached_attention(Case& c) {
  const int64_t n = c.any(2, 4), b = c.any(1, n), g = c.any(1, 6), h = g * c.any(1, 3);
  const int64_t d = c.any(1, 3), e = c.any(1, 3), context = 6;
  mesh::Placements heads(c.mesh_.axes.size());
  int64_t parts = 1;
  for (size_t a = 0; a < heads.size(); ++a) {
    const auto more = parts * c.mesh_.axes[a].size;
    if (g % more != 0 || c.coin(0.2)) continue;
    heads[a] = mesh::Placement::shard(1);
    parts = more;
  }
  const auto key_cache = c.real_placed({n, g, context + 1, d}, heads);
  const auto value_cache = c.real_placed({n, g, context + 1, e}, heads);
  const auto keys = c.value(key_cache).clone(), values = c.value(value_cache).clone();
  auto slots = at::randperm(n, at::kLong).narrow(0, 0, b);
  for (const int64_t first : {0, 2}) {
    const int64_t s = first == 0 ? 2 : c.any(1, 4);
    auto positions = at::arange(first, first + s, at::kLong).expand({b, s}).clone();
    if (c.coin()) positions[b - 1][s - 1] = -1;
    c.typed("perigee::cached_attention",
            {{"query", c.real({b, h, s, d}, false)},
             {"key", c.real({b, g, s, d}, false)},
             {"value", c.real({b, g, s, e}, false)},
             {"positions", c.given(positions)},
             {"slots", c.given(slots)},
             {"key_cache", key_cache},
             {"value_cache", value_cache},
             {"scale", 0.7},
             {"window", c.coin() ? int64_t{0} : int64_t{3}}},
            {real_type({b, h, s, e})});
    slots = slots.flip(0);
  }
  // The ranks begin with the same caches.
  c.value(key_cache).copy_(keys);
  c.value(value_cache).copy_(values);
}

void images(Cases& cases) {
  cases["aten::convolution"] = [](Case& c) {
    const int64_t space = c.any(1, 2), groups = c.coin(0.7) ? 1 : 2;
    const int64_t in = groups * c.any(1, 4), out = groups * c.any(1, 4);
    const bool transposed = c.coin(0.4), bias = c.coin();
    Shape input = {c.size(), in};
    Shape weight = transposed ? Shape{in, out / groups} : Shape{out, in / groups};
    for (int64_t k = 0; k < space; ++k) {
      input.push_back(c.any(3, 6));
      weight.push_back(c.any(1, 3));
    }
    const Ints one(space, 1), zero(space, 0);
    const auto x = c.real(input), w = c.real(weight);
    const Args options = {{"stride", one},          {"padding", zero},
                          {"dilation", one},        {"transposed", transposed},
                          {"output_padding", zero}, {"groups", groups}};
    Args args = {{"input", x}, {"weight", w}};
    args.emplace_back("bias", bias ? c.real({out}) : ValueId{});
    args.insert(args.end(), options.begin(), options.end());
    const auto y = c.call("aten::convolution", args)[0];
    Args back = {{"grad_output", c.real(c.shape(y))}, {"input", x}, {"weight", w}};
    back.emplace_back("bias_sizes", bias ? graph::Arg(Ints{out}) : graph::Arg(std::monostate()));
    back.insert(back.end(), options.begin(), options.end());
    back.emplace_back("output_mask", std::vector<bool>{c.coin(0.8), true, bias});
    c.call("aten::convolution_backward", back, 3);
  };
  const auto image = [](Case& c, int64_t space) {
    Shape shape = {c.size(), c.size()};
    for (int64_t k = 0; k < space; ++k) shape.push_back(c.any(4, 7));
    return shape;
  };
  for (int64_t space = 1; space <= 3; ++space) {
    const auto d = std::to_string(space) + "d";
    const Ints two(space, 2);
    if (space >= 2) {
      const auto pool = "aten::max_pool" + d + "_with_indices";
      cases[pool] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto out = c.call(pool, {{"self", x}, {"kernel_size", two}, {"stride", two}}, 2);
        const Ints zero(space, 0), one(space, 1);
        c.call(pool + "_backward", {{"grad_output", c.real(c.shape(out[0]))},
                                    {"self", x},
                                    {"kernel_size", two},
                                    {"stride", two},
                                    {"padding", zero},
                                    {"dilation", one},
                                    {"ceil_mode", false},
                                    {"indices", out[1]}});
        const auto whole = c.shape(x);
        Args unpool = {{"self", out[0]},
                       {"indices", out[1]},
                       {"output_size", Ints(whole.begin() + 2, whole.end())}};
        if (space == 3) unpool.insert(unpool.end(), {{"stride", two}, {"padding", zero}});
        c.call("aten::max_unpool" + d, unpool);
      };
      const auto average = "aten::avg_pool" + d;
      cases[average] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto y = c.call(average, {{"self", x}, {"kernel_size", two}, {"stride", two}})[0];
        c.call(average + "_backward", {{"grad_output", c.real(c.shape(y))},
                                       {"self", x},
                                       {"kernel_size", two},
                                       {"stride", two},
                                       {"padding", Ints(space, 0)},
                                       {"ceil_mode", false},
                                       {"count_include_pad", true}});
      };
      const auto adaptive = "aten::_adaptive_avg_pool" + d;
      cases[adaptive] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto y = c.call(adaptive, {{"self", x}, {"output_size", two}})[0];
        c.call(adaptive + "_backward", {{"grad_output", c.real(c.shape(y))}, {"self", x}});
      };
      const auto highest = "aten::adaptive_max_pool" + d;
      cases[highest] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto y = c.call(highest, {{"self", x}, {"output_size", two}}, 2);
        c.call(highest + "_backward",
               {{"grad_output", c.real(c.shape(y[0]))}, {"self", x}, {"indices", y[1]}});
      };
    }
    for (const char* kind : {"aten::reflection_pad", "aten::replication_pad"}) {
      const auto op = kind + d;
      cases[op] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const Ints padding(2 * space, 1);
        const auto y = c.call(op, {{"self", x}, {"padding", padding}})[0];
        c.call(op + "_backward",
               {{"grad_output", c.real(c.shape(y))}, {"self", x}, {"padding", padding}});
      };
    }
    const auto resize = [=](const std::string& op, Args more) {
      return [=](Case& c) {
        const auto shape = image(c, space);
        Ints size(space, 9);
        Args args = {{"self", c.real(shape)}, {"output_size", size}};
        args.insert(args.end(), more.begin(), more.end());
        const auto y = c.call(op, args)[0];
        Args back = {{"grad_output", c.real(c.shape(y))}, {"output_size", size}};
        if (c.coin()) {
          back.emplace_back("input_size", shape);
          back.insert(back.end(), more.begin(), more.end());
          c.call(op + "_backward", back);
        } else {
          back.insert(back.end(), more.begin(), more.end());
          c.typed(op + "_backward", back, {real_type(shape)});
        }
      };
    };
    for (const char* kind : {"aten::upsample_nearest", "aten::_upsample_nearest_exact"}) {
      cases[kind + d] = resize(kind + d, {});
    }
    const Args aligned = {{"align_corners", true}};
    if (space == 1) cases["aten::upsample_linear1d"] = resize("aten::upsample_linear1d", aligned);
    if (space == 3)
      cases["aten::upsample_trilinear3d"] = resize("aten::upsample_trilinear3d", aligned);
    if (space == 2) {
      for (const char* op : {"aten::upsample_bilinear2d", "aten::upsample_bicubic2d",
                             "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa"}) {
        cases[op] = resize(op, aligned);
      }
    }
  }
  const Args unfolding = {{"kernel_size", Ints{2, 2}},
                          {"dilation", Ints{1, 1}},
                          {"padding", Ints{0, 0}},
                          {"stride", Ints{1, 1}}};
  cases["aten::im2col"] = [=](Case& c) {
    const auto shape = image(c, 2);
    Args args = {{"self", c.real(shape)}};
    args.insert(args.end(), unfolding.begin(), unfolding.end());
    const auto y = c.call("aten::im2col", args)[0];
    Args back = {{"self", c.real(c.shape(y))}, {"output_size", Ints{shape[2], shape[3]}}};
    back.insert(back.end(), unfolding.begin(), unfolding.end());
    c.call("aten::col2im", back);
  };
  cases["aten::pixel_shuffle"] = [](Case& c) {
    const auto n = c.size();
    const auto y = c.call("aten::pixel_shuffle",
                          {{"self", c.real({n, 8, 3, 2})}, {"upscale_factor", int64_t{2}}})[0];
    c.call("aten::pixel_unshuffle", {{"self", y}, {"downscale_factor", int64_t{2}}});
  };
  cases["aten::channel_shuffle"] = [](Case& c) {
    c.call("aten::channel_shuffle",
           {{"self", c.real({c.size(), 6, 3, 4})}, {"groups", int64_t{3}}});
  };
  for (int64_t space = 2; space <= 3; ++space) {
    const auto op = "aten::grid_sampler_" + std::to_string(space) + "d";
    cases[op] = [=](Case& c) {
      const auto shape = image(c, space);
      Shape grid = {shape[0]};
      for (int64_t k = 0; k < space; ++k) grid.push_back(c.any(2, 4));
      grid.push_back(space);
      const auto x = c.real(shape), g = c.given(at::rand(grid, at::kDouble) * 1.6 - 0.8);
      const Args options = {{"interpolation_mode", int64_t{0}},
                            {"padding_mode", int64_t{0}},
                            {"align_corners", false}};
      Args args = {{"input", x}, {"grid", g}};
      args.insert(args.end(), options.begin(), options.end());
      const auto y = c.call(op, args)[0];
      Args back = {{"grad_output", c.real(c.shape(y))}, {"input", x}, {"grid", g}};
      back.insert(back.end(), options.begin(), options.end());
      back.emplace_back("output_mask", std::vector<bool>{true, true});
      c.call(op + "_backward", back, 2);
    };
  }
}

}  // namespace

void add_image_cases(Cases& cases) {
  attention(cases, "perigee::attention", false, false);
  attention(cases, "perigee::attention in a ring", true, false);
  cases["perigee::cached_attention"] = cached_attention;
  attention(cases, "perigee::attention within documents", false, true);
  attention(cases, "perigee::attention within documents in a ring", true, true);
  images(cases);
}

}  // namespace perigee::parity
