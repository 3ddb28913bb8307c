// Pooling, resampling and padding of images: batch and channels may be sharded, height and width
// may not.
#include "shard/rules/families.h"

namespace perigee::shard {

void add_spatial_rules(Rules& rules) {
  const std::string pooling = "kernel_size stride padding dilation ceil_mode";
  const std::string averaging =
      "kernel_size stride padding ceil_mode count_include_pad divisor_override";
  for (int space = 1; space <= 3; ++space) {
    const std::string d = std::to_string(space) + "d";
    std::string s;
    for (int k = 0; k < space; ++k) s += " 1";
    const auto one = "b*" + s;
    const auto unary = one + " -> " + one;
    const auto backward = one + ", " + one + " -> " + one;
    const auto indexed = one + " -> " + one + ", " + one;
    const auto indexed_backward = one + ", " + one + ", " + one + " -> " + one;
    if (space > 1) {  // in one dim LibTorch makes them of the others
      rules.add_rule("aten::max_pool" + d + "_with_indices", indexed + "; " + pooling);
      rules.add_rule("aten::max_pool" + d + "_with_indices_backward",
                     indexed_backward + "; linear(0) " + pooling);
      rules.add_rule("aten::avg_pool" + d, unary + "; " + averaging);
      rules.add_rule("aten::avg_pool" + d + "_backward", backward + "; linear(0) " + averaging);
      rules.add_rule("aten::_adaptive_avg_pool" + d, unary + "; output_size");
      rules.add_rule("aten::_adaptive_avg_pool" + d + "_backward", backward + "; linear(0)");
      rules.add_rule("aten::adaptive_max_pool" + d, indexed + "; output_size");
      rules.add_rule("aten::adaptive_max_pool" + d + "_backward", indexed_backward + "; linear(0)");
      rules.add_rule("aten::max_unpool" + d, backward + "; output_size stride padding");
    }
    for (const char* name : {"aten::reflection_pad", "aten::replication_pad"}) {
      rules.add_rule(name + d, unary + "; padding");
      rules.add_rule(name + d + "_backward", backward + "; linear(0) padding");
    }
    for (const char* name : {"aten::upsample_nearest", "aten::_upsample_nearest_exact"}) {
      rules.add_rule(name + d, unary + "; linear(0) output_size scales scales_d scales_h scales_w");
      rules.add_rule(
          name + d + "_backward",
          unary + "; linear(0) output_size input_size=@0 scales scales_d scales_h scales_w");
    }
  }
  const auto resample = [&](const std::string& op, const std::string& s) {
    const auto unary = "b*" + s + " -> b*" + s;
    const std::string attributes = " output_size align_corners scales scales_d scales_h scales_w";
    rules.add_rule(op, unary + "; linear(0)" + attributes);
    rules.add_rule(op + "_backward", unary + "; linear(0) input_size=@0" + attributes);
  };
  resample("aten::upsample_linear1d", " 1");
  for (const char* op : {"aten::upsample_bilinear2d", "aten::upsample_bicubic2d",
                         "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa"}) {
    resample(op, " 1 1");
  }
  resample("aten::upsample_trilinear3d", " 1 1 1");
  add_text_rules(
      rules,
      {
          {"aten::im2col", "b c^ 1 1 -> b 1 1; kernel_size dilation padding stride linear(0)"},
          {"aten::col2im",
           "b 1 1 -> b 1 1 1; output_size kernel_size dilation padding stride linear(0)"},
          {"aten::pixel_shuffle", "b c^ 1 1 -> b 1 1 1; upscale_factor linear(0)"},
          {"aten::pixel_unshuffle", "b c^ 1 1 -> b 1 1 1; downscale_factor linear(0)"},
          {"aten::channel_shuffle", "b c^ s* -> b c s*; groups linear(0)"},
          {"aten::grid_sampler_2d",
           "n c 1 1, n 1 1 1 -> n c 1 1; interpolation_mode padding_mode align_corners linear(0)"},
          {"aten::grid_sampler_2d_backward",
           "n c+ 1 1, n c 1 1, n 1 1 1 -> n c 1 1, n 1 1 1; interpolation_mode padding_mode "
           "align_corners output_mask linear(0)"},
          {"aten::grid_sampler_3d",
           "n c 1 1 1, n 1 1 1 1 -> n c 1 1 1; interpolation_mode padding_mode align_corners "
           "linear(0)"},
          {"aten::grid_sampler_3d_backward",
           "n c+ 1 1 1, n c 1 1 1, n 1 1 1 1 -> n c 1 1 1, n 1 1 1 1; interpolation_mode "
           "padding_mode align_corners output_mask linear(0)"},
      });
}

}  // namespace perigee::shard
