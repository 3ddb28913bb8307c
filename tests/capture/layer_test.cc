// Every layer class of the torch::nn C++ API that computes without random numbers: linear,
// convolution, normalisation, pooling, padding, activations and shapes. Sequences, losses and
// random layers have files of their own; refused layers are in refused_test.cc.
#include <torch/nn.h>

#include "tests/capture/layers.h"

namespace nn = torch::nn;

namespace perigee::test {

std::vector<Layer> linear_layers() {
  return {
      layer<1>("Identity", nn::Identity(), {normal({3, 4})}),
      layer<1>("Linear", nn::Linear(4, 5), {normal({3, 4})}),
      layer<1>("Linear without bias", nn::Linear(nn::LinearOptions(4, 5).bias(false)),
               {normal({2, 3, 4})}),
      layer<1>("Linear of three dims", nn::Linear(4, 5), {normal({2, 3, 4})}),
      layer<1>("Linear of a vector", nn::Linear(4, 5), {normal({4})}),
      layer<2>("Bilinear", nn::Bilinear(3, 4, 5), {normal({2, 3}), normal({2, 4})}),
      layer<1>("Flatten", nn::Flatten(), {normal({2, 3, 4})}),
      layer<1>("Unflatten", nn::Unflatten(nn::UnflattenOptions(1, {2, 3})), {normal({2, 6})}),
      layer<2>("CosineSimilarity", nn::CosineSimilarity(), {normal({3, 4}), normal({3, 4})}),
      layer<2>("PairwiseDistance", nn::PairwiseDistance(), {normal({3, 4}), normal({3, 4})}),
      layer<1>("PixelShuffle", nn::PixelShuffle(2), {normal({2, 8, 3, 3})}),
      layer<1>("PixelUnshuffle", nn::PixelUnshuffle(2), {normal({2, 2, 4, 6})}),
      layer<1>("Fold", nn::Fold(nn::FoldOptions({4, 5}, {2, 2}).stride(1)), {normal({2, 12, 12})}),
      layer<1>("Unfold", nn::Unfold(nn::UnfoldOptions({2, 2}).padding(1)), {normal({2, 3, 4, 5})}),
      layer<1>("Functional", nn::Functional([](at::Tensor x) { return x.exp(); }),
               {normal({3, 4})}),
  };
}

std::vector<Layer> convolution_layers() {
  return {
      layer<1>("Conv1d", nn::Conv1d(4, 6, 3), {normal({2, 4, 8})}),
      layer<1>("Conv1d with groups",
               nn::Conv1d(nn::Conv1dOptions(4, 6, 3).groups(2).padding(1).stride(2)),
               {normal({2, 4, 9})}),
      layer<1>("Conv2d", nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).dilation(2)),
               {normal({2, 3, 8, 7})}),
      layer<1>("Conv2d, same size", nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(torch::kSame)),
               {normal({2, 3, 6, 6})}),
      layer<1>("Conv2d, reflected",
               nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).padding_mode(torch::kReflect)),
               {normal({2, 3, 6, 6})}),
      layer<1>("Conv2d of channels last", nn::Conv2d(3, 4, 3),
               {normal({2, 3, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast)}),
      layer<1>("Conv2d without batch", nn::Conv2d(3, 4, 3), {normal({3, 6, 6})}),
      layer<1>("Conv3d", nn::Conv3d(2, 3, 2), {normal({2, 2, 4, 5, 4})}),
      layer<1>("ConvTranspose1d",
               nn::ConvTranspose1d(nn::ConvTranspose1dOptions(4, 3, 3).stride(2).output_padding(1)),
               {normal({2, 4, 5})}),
      layer<1>("ConvTranspose2d",
               nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 6, 3).groups(2).padding(1)),
               {normal({2, 4, 5, 5})}),
      layer<1>("ConvTranspose3d", nn::ConvTranspose3d(2, 3, 2), {normal({2, 2, 3, 3, 3})}),
  };
}

std::vector<Layer> norm_layers() {
  return {
      layer<1>("BatchNorm1d", nn::BatchNorm1d(4), {normal({5, 4})}),
      layer<1>("BatchNorm1d of sequences", nn::BatchNorm1d(4), {normal({5, 4, 3})}),
      layer<1>("BatchNorm2d", nn::BatchNorm2d(4), {normal({3, 4, 2, 3})}),
      layer<1>("BatchNorm2d without statistics",
               nn::BatchNorm2d(nn::BatchNorm2dOptions(4).track_running_stats(false)),
               {normal({3, 4, 2, 3})}),
      layer<1>("BatchNorm2d without weights",
               nn::BatchNorm2d(nn::BatchNorm2dOptions(4).affine(false)), {normal({3, 4, 2, 3})}),
      layer<1>("BatchNorm3d", nn::BatchNorm3d(2), {normal({3, 2, 2, 3, 2})}),
      layer<1>("InstanceNorm1d", nn::InstanceNorm1d(nn::InstanceNorm1dOptions(4).affine(true)),
               {normal({2, 4, 6})}),
      layer<1>(
          "InstanceNorm2d",
          nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)),
          {normal({2, 4, 3, 3})}),
      layer<1>("InstanceNorm3d", nn::InstanceNorm3d(4), {normal({2, 4, 2, 3, 2})}),
      layer<1>("LayerNorm", nn::LayerNorm(nn::LayerNormOptions({3, 4})), {normal({2, 5, 3, 4})}),
      layer<1>("LayerNorm without weights",
               nn::LayerNorm(nn::LayerNormOptions({4}).elementwise_affine(false)),
               {normal({2, 5, 4})}),
      layer<1>("GroupNorm", nn::GroupNorm(2, 4), {normal({3, 4, 2, 3})}),
      layer<1>("LocalResponseNorm", nn::LocalResponseNorm(3), {normal({2, 5, 4, 4})}),
      layer<1>("CrossMapLRN2d", nn::CrossMapLRN2d(3), {normal({2, 5, 4, 4})}),
  };
}

namespace {

// Max pooling with indices, and unpooling by them; the loss excludes the indices.
template <class Pool, class Unpool>
Layer unpool(std::string name, Pool pool, Unpool unpool, at::Tensor input) {
  return {std::move(name),
          nn::ModuleList(pool, unpool).ptr(),
          {std::move(input)},
          [pool, unpool](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            auto [output, indices] = pool->forward_with_indices(in[0]);
            return {output, unpool->forward(output, indices), indices};
          }};
}

nn::Upsample upsample(nn::UpsampleOptions options) { return nn::Upsample(options); }

}  // namespace

std::vector<Layer> pooling_layers() {
  return {
      layer<1>("MaxPool1d", nn::MaxPool1d(nn::MaxPool1dOptions(3).padding(1)), {normal({2, 3, 8})}),
      layer<1>("MaxPool2d", nn::MaxPool2d(nn::MaxPool2dOptions(2).ceil_mode(true)),
               {normal({2, 3, 5, 5})}),
      layer<1>("MaxPool3d",
               nn::MaxPool3d(nn::MaxPool3dOptions(3).stride(2).padding(1).ceil_mode(true)),
               {normal({2, 3, 5, 4, 6})}),
      layer<1>("AvgPool1d", nn::AvgPool1d(2), {normal({2, 3, 8})}),
      layer<1>("AvgPool2d", nn::AvgPool2d(nn::AvgPool2dOptions(3).padding(1).stride(2)),
               {normal({2, 3, 6, 6})}),
      layer<1>("AvgPool3d", nn::AvgPool3d(2), {normal({2, 3, 4, 4, 4})}),
      layer<1>("LPPool1d", nn::LPPool1d(2, 2), {uniform({2, 3, 8})}),
      layer<1>("LPPool2d", nn::LPPool2d(3, 2), {uniform({2, 3, 4, 4})}),
      layer<1>("LPPool3d", nn::LPPool3d(2, 2), {uniform({2, 3, 4, 4, 4})}),
      layer<1>("AdaptiveAvgPool1d", nn::AdaptiveAvgPool1d(3), {normal({2, 3, 8})}),
      layer<1>("AdaptiveAvgPool2d", nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({3, 2})),
               {normal({2, 3, 7, 6})}),
      layer<1>("AdaptiveAvgPool2d to one", nn::AdaptiveAvgPool2d(1), {normal({2, 3, 7, 6})}),
      layer<1>("AdaptiveAvgPool3d", nn::AdaptiveAvgPool3d(2), {normal({2, 3, 5, 4, 3})}),
      layer<1>("AdaptiveMaxPool1d", nn::AdaptiveMaxPool1d(3), {normal({2, 3, 8})}),
      layer<1>("AdaptiveMaxPool2d", nn::AdaptiveMaxPool2d(2), {normal({2, 3, 5, 6})}),
      layer<1>("AdaptiveMaxPool3d", nn::AdaptiveMaxPool3d(2), {normal({2, 3, 5, 4, 3})}),
      layer<1>(
          "FractionalMaxPool2d",
          nn::FractionalMaxPool2d(
              nn::FractionalMaxPool2dOptions(2).output_size(3)._random_samples(uniform({2, 3, 2}))),
          {normal({2, 3, 6, 6})}),
      layer<1>(
          "FractionalMaxPool3d",
          nn::FractionalMaxPool3d(
              nn::FractionalMaxPool3dOptions(2).output_size(2)._random_samples(uniform({2, 3, 3}))),
          {normal({2, 3, 5, 5, 5})}),
      unpool("MaxUnpool1d", nn::MaxPool1d(2), nn::MaxUnpool1d(2), normal({2, 3, 8})),
      unpool("MaxUnpool2d", nn::MaxPool2d(2), nn::MaxUnpool2d(2), normal({2, 3, 6, 6})),
      unpool("MaxUnpool3d", nn::MaxPool3d(2), nn::MaxUnpool3d(2), normal({2, 3, 4, 4, 4})),
  };
}

std::vector<Layer> padding_layers() {
  return {
      layer<1>("ReflectionPad1d", nn::ReflectionPad1d(2), {normal({2, 3, 5})}),
      layer<1>("ReflectionPad2d", nn::ReflectionPad2d(2), {normal({2, 3, 5, 4})}),
      layer<1>("ReflectionPad3d", nn::ReflectionPad3d(1), {normal({2, 3, 4, 3, 3})}),
      layer<1>("ReplicationPad1d", nn::ReplicationPad1d(2), {normal({2, 3, 5})}),
      layer<1>("ReplicationPad2d", nn::ReplicationPad2d(2), {normal({2, 3, 5, 4})}),
      layer<1>("ReplicationPad3d", nn::ReplicationPad3d(1), {normal({2, 3, 4, 3, 3})}),
      layer<1>("ZeroPad1d", nn::ZeroPad1d(2), {normal({2, 3, 5})}),
      layer<1>("ZeroPad2d", nn::ZeroPad2d(2), {normal({2, 3, 5, 4})}),
      layer<1>("ZeroPad3d", nn::ZeroPad3d(1), {normal({2, 3, 4, 3, 3})}),
      layer<1>("ConstantPad1d", nn::ConstantPad1d(2, 1.5), {normal({2, 3, 5})}),
      layer<1>("ConstantPad2d", nn::ConstantPad2d(2, 1.5), {normal({2, 3, 5, 4})}),
      layer<1>("ConstantPad3d", nn::ConstantPad3d(1, 1.5), {normal({2, 3, 4, 3, 3})}),
  };
}

std::vector<Layer> upsample_layers() {
  const std::vector<double> twice{2.0}, twice2{2.0, 2.0}, twice3{2.0, 2.0, 2.0};
  return {
      layer<1>("Upsample nearest 1d", upsample(nn::UpsampleOptions().scale_factor(twice)),
               {normal({2, 3, 4})}),
      layer<1>("Upsample nearest 2d", upsample(nn::UpsampleOptions().scale_factor(twice2)),
               {normal({2, 3, 4, 3})}),
      layer<1>("Upsample nearest 3d", upsample(nn::UpsampleOptions().scale_factor(twice3)),
               {normal({2, 3, 2, 3, 2})}),
      layer<1>(
          "Upsample linear",
          upsample(
              nn::UpsampleOptions().scale_factor(twice).mode(torch::kLinear).align_corners(false)),
          {normal({2, 3, 4})}),
      layer<1>("Upsample bilinear",
               upsample(nn::UpsampleOptions()
                            .size(std::vector<int64_t>{5, 6})
                            .mode(torch::kBilinear)
                            .align_corners(true)),
               {normal({2, 3, 4, 3})}),
      layer<1>("Upsample bicubic",
               upsample(nn::UpsampleOptions()
                            .scale_factor(twice2)
                            .mode(torch::kBicubic)
                            .align_corners(false)),
               {normal({2, 3, 4, 3})}),
      layer<1>("Upsample trilinear",
               upsample(nn::UpsampleOptions()
                            .scale_factor(twice3)
                            .mode(torch::kTrilinear)
                            .align_corners(false)),
               {normal({2, 3, 2, 3, 2})}),
  };
}

// Inputs avoid 0, where some activations have no derivative.
std::vector<Layer> activation_layers() {
  const auto x = normal({3, 4});
  return {
      layer<1>("ELU", nn::ELU(), {x}),
      layer<1>("SELU", nn::SELU(), {x}),
      layer<1>("CELU", nn::CELU(), {x}),
      layer<1>("GELU", nn::GELU(), {x}),
      layer<1>("GELU by tanh", nn::GELU(nn::GELUOptions().approximate("tanh")), {x}),
      layer<1>("SiLU", nn::SiLU(), {x}),
      layer<1>("Mish", nn::Mish(), {x}),
      layer<1>("ReLU", nn::ReLU(), {x}),
      layer<1>("ReLU6", nn::ReLU6(), {x}),
      layer<1>("LeakyReLU", nn::LeakyReLU(), {x}),
      layer<1>("PReLU", nn::PReLU(nn::PReLUOptions().num_parameters(4)), {x}),
      layer<1>("Hardshrink", nn::Hardshrink(), {x}),
      layer<1>("Hardtanh", nn::Hardtanh(), {x}),
      layer<1>("Softshrink", nn::Softshrink(), {x}),
      layer<1>("Softplus", nn::Softplus(), {x}),
      layer<1>("Softsign", nn::Softsign(), {x}),
      layer<1>("Tanh", nn::Tanh(), {x}),
      layer<1>("Tanhshrink", nn::Tanhshrink(), {x}),
      layer<1>("Sigmoid", nn::Sigmoid(), {x}),
      layer<1>("LogSigmoid", nn::LogSigmoid(), {x}),
      layer<1>("Threshold", nn::Threshold(0.1, 20), {x}),
      layer<1>("GLU", nn::GLU(), {x}),
      layer<1>("Softmax", nn::Softmax(1), {x}),
      layer<1>("Softmin", nn::Softmin(1), {x}),
      layer<1>("LogSoftmax", nn::LogSoftmax(1), {x}),
      layer<1>("Softmax2d", nn::Softmax2d(), {normal({2, 3, 2, 2})}),
  };
}

std::vector<Layer> container_layers() {
  using Tensors = std::vector<at::Tensor>;
  const auto linear = [] {
    nn::Linear linear(4, 4);
    linear->to(torch::kFloat64);
    return linear;
  };
  const auto weight = [] { return normal({4, 4}).requires_grad_(); };
  nn::ModuleList list(linear(), linear());
  nn::ModuleDict dict;
  dict->update({{"first", linear().ptr()}, {"second", linear().ptr()}});
  nn::ParameterList weights;
  weights->append(weight());
  weights->append(weight());
  nn::ParameterDict named;
  named->insert("first", weight());
  named->insert("second", weight());
  return {
      layer<1>("Sequential", nn::Sequential(linear(), nn::Tanh(), linear()), {normal({3, 4})}),
      {"ModuleList",
       list.ptr(),
       {normal({3, 4})},
       [list](const Tensors& in) -> Tensors {
         auto x = in[0];
         for (const auto& module : *list) x = module->as<nn::Linear>()->forward(x).tanh();
         return {x};
       }},
      {"ModuleDict",
       dict.ptr(),
       {normal({3, 4})},
       [dict](const Tensors& in) -> Tensors {
         const auto run = [&](const char* name, const at::Tensor& x) {
           return (*dict)[name]->as<nn::Linear>()->forward(x);
         };
         return {run("second", run("first", in[0]).tanh())};
       }},
      {"ParameterList",
       weights.ptr(),
       {normal({3, 4})},
       [weights](const Tensors& in) mutable -> Tensors {
         return {in[0].matmul((*weights)[0]).tanh().matmul((*weights)[1])};
       }},
      {"ParameterDict",
       named.ptr(),
       {normal({3, 4})},
       [named](const Tensors& in) mutable -> Tensors {
         return {in[0].matmul((*named)["first"]).tanh().matmul((*named)["second"])};
       }},
  };
}

TEST_CASE("linear and shape layers equal eager autograd") {
  for (const auto& layer : linear_layers()) check_layer(layer);
}
TEST_CASE("convolutions equal eager autograd") {
  for (const auto& layer : convolution_layers()) check_layer(layer);
}
TEST_CASE("normalisation layers equal eager autograd") {
  for (const auto& layer : norm_layers()) check_layer(layer);
}
TEST_CASE("pooling layers equal eager autograd") {
  for (const auto& layer : pooling_layers()) check_layer(layer);
}
TEST_CASE("padding layers equal eager autograd") {
  for (const auto& layer : padding_layers()) check_layer(layer);
}
TEST_CASE("upsampling layers equal eager autograd") {
  for (const auto& layer : upsample_layers()) check_layer(layer);
}
TEST_CASE("activations equal eager autograd") {
  for (const auto& layer : activation_layers()) check_layer(layer);
}
TEST_CASE("containers equal eager autograd") {
  for (const auto& layer : container_layers()) check_layer(layer);
}

}  // namespace perigee::test
