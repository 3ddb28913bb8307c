// Layers over sequences: embeddings, recurrent layers, attention and transformers.
#include <torch/nn.h>

#include "tests/capture/layers.h"

namespace nn = torch::nn;

namespace perigee::test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Recurrent layers return their output and a state.
template <class Holder>
Layer recurrent(std::string name, Holder holder, Tensors inputs) {
  holder->to(torch::kFloat64);
  return {std::move(name), holder.ptr(), std::move(inputs),
          [holder](const Tensors& in) mutable -> Tensors {
            auto [output, state] = in.size() > 1 ? holder->forward(in[0], in[1])
                                                 : holder->forward(in[0]);
            return {output, state};
          }};
}

Layer lstm(std::string name, nn::LSTM holder, Tensors inputs) {
  holder->to(torch::kFloat64);
  return {std::move(name), holder.ptr(), std::move(inputs),
          [holder](const Tensors& in) mutable -> Tensors {
            using State = std::tuple<at::Tensor, at::Tensor>;
            auto [output, state] = in.size() > 1 ? holder->forward(in[0], State(in[1], in[2]))
                                                 : holder->forward(in[0]);
            return {output, std::get<0>(state), std::get<1>(state)};
          }};
}

}  // namespace

std::vector<Layer> embedding_layers() {
  return {
      layer<1>("Embedding", nn::Embedding(7, 4), {integers(7, {2, 3})}),
      layer<1>("Embedding with padding", nn::Embedding(nn::EmbeddingOptions(7, 4).padding_idx(2)),
               {integers(7, {5, 3})}),
      layer<2>("EmbeddingBag mean", nn::EmbeddingBag(7, 4),
               {integers(7, {6}), torch::tensor({0, 2, 3})}),
      layer<1>("EmbeddingBag sum of rows",
               nn::EmbeddingBag(nn::EmbeddingBagOptions(7, 4).mode(torch::kSum)),
               {integers(7, {3, 4})}),
      layer<2>("EmbeddingBag max",
               nn::EmbeddingBag(nn::EmbeddingBagOptions(7, 4).mode(torch::kMax)),
               {integers(7, {6}), torch::tensor({0, 2, 3})}),
      layer<3>("EmbeddingBag with weights",
               nn::EmbeddingBag(nn::EmbeddingBagOptions(7, 4).mode(torch::kSum)),
               {integers(7, {6}), torch::tensor({0, 2, 3}), normal({6})}),
  };
}

std::vector<Layer> recurrent_layers() {
  nn::LSTMCell cell(4, 5);
  cell->to(torch::kFloat64);
  const auto rnn = [](auto set) {
    auto options = nn::RNNOptions(4, 5);
    set(options);
    return nn::RNN(options);
  };
  return {
      recurrent("RNN", rnn([](auto& o) { o.num_layers(2); }), {normal({3, 2, 4})}),
      recurrent("RNN with relu", rnn([](auto& o) { o.nonlinearity(torch::kReLU); }),
                {normal({3, 2, 4}), normal({1, 2, 5})}),
      recurrent("GRU", nn::GRU(nn::GRUOptions(4, 5).bidirectional(true).batch_first(true)),
                {normal({3, 2, 4})}),
      recurrent("GRU without bias", nn::GRU(nn::GRUOptions(4, 5).bias(false)),
                {normal({3, 2, 4}), normal({1, 2, 5})}),
      lstm("LSTM", nn::LSTM(nn::LSTMOptions(4, 5).num_layers(2)), {normal({3, 2, 4})}),
      lstm("LSTM with a state", nn::LSTM(nn::LSTMOptions(4, 5).bidirectional(true)),
           {normal({3, 2, 4}), normal({2, 2, 5}), normal({2, 2, 5})}),
      lstm("LSTM with projection", nn::LSTM(nn::LSTMOptions(4, 5).proj_size(3)),
           {normal({3, 2, 4})}),
      layer<1>("RNNCell", nn::RNNCell(4, 5), {normal({2, 4})}),
      layer<2>("GRUCell", nn::GRUCell(4, 5), {normal({2, 4}), normal({2, 5})}),
      {"LSTMCell",
       cell.ptr(),
       {normal({2, 4})},
       [cell](const Tensors& in) mutable -> Tensors {
         auto [h, c] = cell->forward(in[0]);
         return {h, c};
       }},
  };
}

namespace {

Layer attention(std::string name, nn::MultiheadAttentionOptions options, at::Tensor mask = {}) {
  nn::MultiheadAttention holder(options);
  holder->to(torch::kFloat64);
  const auto of = [&](std::optional<int64_t> dim) { return dim.value_or(options.embed_dim()); };
  return {std::move(name),
          holder.ptr(),
          {normal({3, 2, options.embed_dim()}), normal({4, 2, of(options.kdim())}),
           normal({4, 2, of(options.vdim())})},
          [holder, mask](const Tensors& in) mutable -> Tensors {
            auto [output, weights] = holder->forward(in[0], in[1], in[2], {}, true, mask);
            return {output, weights};
          }};
}

}  // namespace

std::vector<Layer> transformer_layers() {
  const auto encoder = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  const auto decoder = nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  const auto whole = nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(12).dropout(0);
  return {
      attention("MultiheadAttention", nn::MultiheadAttentionOptions(8, 2)),
      attention("MultiheadAttention with mask", nn::MultiheadAttentionOptions(8, 2),
                normal({3, 4})),
      attention("MultiheadAttention of three widths",
                nn::MultiheadAttentionOptions(8, 2).kdim(6).vdim(6).add_bias_kv(true).add_zero_attn(
                    true)),
      layer<1>("TransformerEncoderLayer", nn::TransformerEncoderLayer(encoder),
               {normal({3, 2, 8})}),
      layer<2>("TransformerDecoderLayer", nn::TransformerDecoderLayer(decoder),
               {normal({3, 2, 8}), normal({4, 2, 8})}),
      layer<1>("TransformerEncoder",
               nn::TransformerEncoder(nn::TransformerEncoderOptions(encoder, 2)),
               {normal({3, 2, 8})}),
      layer<2>("TransformerDecoder",
               nn::TransformerDecoder(nn::TransformerDecoderOptions(decoder, 2)),
               {normal({3, 2, 8}), normal({4, 2, 8})}),
      layer<2>("Transformer", nn::Transformer(whole), {normal({3, 2, 8}), normal({4, 2, 8})}),
  };
}

namespace {

// scaled_dot_product_attention itself: query, key, value, and a mask where there are four inputs.
Layer sdpa(std::string name, Tensors inputs, bool causal = false, bool grouped = false,
           std::optional<double> scale = {}) {
  return {std::move(name), nullptr, std::move(inputs), [=](const Tensors& in) -> Tensors {
            const auto mask = in.size() > 3 ? std::optional(in[3]) : std::nullopt;
            return {at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, causal, scale,
                                                     grouped)};
          }};
}

std::vector<Layer> attention_layers() {
  const auto q = normal({2, 4, 5, 3}), k = normal({2, 4, 6, 3}), v = normal({2, 4, 6, 2});
  return {
      sdpa("attention", {q, k, v}),
      sdpa("causal attention", {q, k, v}, true),
      sdpa("attention with scale", {q, k, v}, false, false, 0.3),
      sdpa("attention with a bias", {q, k, v, normal({5, 6})}),
      sdpa("attention with a bias per head", {q, k, v, normal({2, 1, 5, 6})}),
      sdpa("attention with a mask", {q, k, v, normal({2, 1, 5, 6}) > -1}),
      sdpa("grouped attention", {q, normal({2, 2, 6, 3}), normal({2, 2, 6, 2})}, false, true),
      sdpa("attention of five dims with a bias per window",
           {normal({2, 3, 4, 5, 2}), normal({2, 3, 4, 6, 2}), normal({2, 3, 4, 6, 2}),
            normal({3, 1, 5, 6})}),
      sdpa("attention of five dims with a mask of more samples than queries",
           {normal({1, 3, 4, 5, 2}), normal({2, 3, 4, 6, 2}), normal({2, 3, 4, 6, 2}),
            normal({2, 1, 1, 5, 6}) > -1}),
      sdpa("attention of three dims", {normal({4, 5, 3}), normal({4, 6, 3}), normal({4, 6, 2})}),
      {"rms_norm",
       nullptr,
       {normal({2, 3, 4}), normal({4})},
       [](const Tensors& in) -> Tensors { return {at::rms_norm(in[0], {4}, in[1], 1e-5)}; }},
      {"rms_norm of two dims",
       nullptr,
       {normal({2, 3, 4})},
       [](const Tensors& in) -> Tensors {
         return {at::rms_norm(in[0], {3, 4})};
       }},
  };
}

}  // namespace

TEST_CASE("embeddings equal eager autograd") {
  for (const auto& layer : embedding_layers()) check_layer(layer);
}
TEST_CASE("recurrent layers equal eager autograd") {
  for (const auto& layer : recurrent_layers()) check_layer(layer);
}
TEST_CASE("transformer layers equal eager autograd") {
  for (const auto& layer : transformer_layers()) check_layer(layer);
}
TEST_CASE("attention and RMS norm equal eager autograd") {
  for (const auto& layer : attention_layers()) check_layer(layer);
}

}  // namespace perigee::test
