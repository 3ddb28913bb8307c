// Ops that no layer of torch::nn uses, forward and backward.
#include <ATen/ATen.h>

#include "tests/capture/support.h"

namespace perigee::test {
namespace {

using Tensors = std::vector<at::Tensor>;

Layer op(std::string name, Tensors inputs, Layer::Run run) {
  return {std::move(name), nullptr, std::move(inputs), std::move(run)};
}

// A matrix with eigenvalues above 1.
at::Tensor definite(const at::Tensor& x) {
  return x.matmul(x.transpose(-1, -2)) + 2 * at::eye(x.size(-2), x.options());
}

std::vector<Layer> ordering_ops() {
  const auto x = normal({3, 5}), y = normal({2, 3, 4});
  return {
      op("cummax", {x},
         [](const Tensors& in) -> Tensors {
           return {std::get<0>(in[0].cummax(1)), std::get<0>(in[0].cummax(0))};
         }),
      op("cummin", {y},
         [](const Tensors& in) -> Tensors { return {std::get<0>(in[0].cummin(1))}; }),
      op("logcumsumexp", {x}, [](const Tensors& in) -> Tensors { return {in[0].logcumsumexp(1)}; }),
      op("kthvalue", {y},
         [](const Tensors& in) -> Tensors {
           return {std::get<0>(in[0].kthvalue(2, 1)), std::get<0>(in[0].kthvalue(1, -1, true))};
         }),
      op("median over a dim", {x},
         [](const Tensors& in) -> Tensors {
           return {std::get<0>(in[0].median(1)), std::get<0>(in[0].median(0, true))};
         }),
      op("mode", {x}, [](const Tensors& in) -> Tensors { return {std::get<0>(in[0].mode(1))}; }),
      op("nansum", {x},
         [](const Tensors& in) -> Tensors {
           return {in[0].nansum(), in[0].nansum(at::IntArrayRef{1}), in[0].log().nansum(0)};
         }),
      op("nanmean", {x},
         [](const Tensors& in) -> Tensors { return {in[0].nanmean(at::IntArrayRef{1})}; }),
      op("count_nonzero", {x},
         [](const Tensors& in) -> Tensors {
           const auto kept = in[0].relu();
           return {kept / kept.count_nonzero(),
                   kept.sum(1) / (1 + kept.count_nonzero(at::IntArrayRef{1}))};
         }),
      op("tril_indices", {x},
         [](const Tensors& in) -> Tensors {
           const auto at = at::tril_indices(3, 5), above = at::triu_indices(3, 5, 1);
           return {in[0].index({at[0], at[1]}), in[0].index({above[0], above[1]})};
         }),
      op("masked_scatter", {x, normal({15})},
         [](const Tensors& in) -> Tensors {
           return {in[0].masked_scatter(in[0].detach() > 0, in[1])};
         }),
      op("masks of more elements than the tensor that they fill", {normal({2, 1, 3}), normal({24})},
         [](const Tensors& in) -> Tensors {
           const auto later = torch::ones({4, 3}, torch::kBool).triu(1);
           return {in[0].masked_fill(later, -2.5), in[0].masked_fill(later, torch::tensor(1.5)),
                   in[0].masked_scatter(later, in[1])};
         }),
      op("rot90", {y},
         [](const Tensors& in) -> Tensors {
           return {in[0].rot90(), in[0].rot90(2, {1, 2}), in[0].rot90(-1, {0, -1})};
         }),
      op("bucketize", {x},
         [](const Tensors& in) -> Tensors {
           const auto bounds = at::arange(-2, 3, in[0].options());
           return {in[0] * at::bucketize(in[0].detach(), bounds)};
         }),
      op("searchsorted", {x},
         [](const Tensors& in) -> Tensors {
           const auto sorted = std::get<0>(in[0].detach().sort(1));
           return {in[0] * at::searchsorted(sorted, in[0].detach().contiguous(), true)};
         }),
      op("take", {x, integers(15, {2, 3})},
         [](const Tensors& in) -> Tensors { return {in[0].take(in[1])}; }),
      op("cov", {x},
         [](const Tensors& in) -> Tensors {
           return {in[0].cov(), in[0].cov(0), in[0][0].cov()};
         }),
      op("cov of weighted observations", {x, integers(3, {5}) + 1, uniform({5})},
         [](const Tensors& in) -> Tensors {
           const auto weights = in[2].detach();
           return {in[0].cov(1, in[1]), in[0].cov(1, std::nullopt, weights),
                   in[0].cov(0, in[1], weights)};
         }),
      op("corrcoef", {x}, [](const Tensors& in) -> Tensors { return {in[0].corrcoef()}; }),
      op("isin", {x, integers(4, {6}), integers(2, {2})},
         [](const Tensors& in) -> Tensors {
           return {in[0] * at::isin(in[1], in[2]).to(in[0].scalar_type()).sum()};
         }),
  };
}

std::vector<Layer> matrix_ops() {
  const auto a = normal({3, 3}), b = normal({2, 3, 3}), c = normal({3, 2});
  return {
      op("weight_norm", {normal({3, 5}), normal({3, 1}), normal({1, 5})},
         [](const Tensors& in) -> Tensors {
           return {at::_weight_norm(in[0], in[1], 0), at::_weight_norm(in[0], in[2], 1)};
         }),
      op("addbmm", {normal({3, 4}), normal({2, 3, 5}), normal({2, 5, 4})},
         [](const Tensors& in) -> Tensors { return {in[0].addbmm(in[1], in[2], 0.5, 2)}; }),
      op("linalg_solve_triangular", {b, c},
         [](const Tensors& in) -> Tensors {
           const auto lower = in[0].tril() + 3 * at::eye(3, in[0].options());
           return {at::linalg_solve_triangular(lower, in[1], false)};
         }),
      op("linalg_cholesky", {b},
         [](const Tensors& in) -> Tensors { return {at::linalg_cholesky(definite(in[0]))}; }),
      op("linalg_qr", {normal({4, 3})},
         [](const Tensors& in) -> Tensors {
           const auto [q, r] = at::linalg_qr(in[0]);
           return {q, r};
         }),
      op("cholesky_solve", {a, c},
         [](const Tensors& in) -> Tensors {
           return {in[1].cholesky_solve(at::linalg_cholesky(definite(in[0])))};
         }),
      op("linalg_matrix_exp", {b},
         [](const Tensors& in) -> Tensors { return {at::linalg_matrix_exp(in[0])}; }),
      op("linalg_pinv", {c}, [](const Tensors& in) -> Tensors { return {at::linalg_pinv(in[0])}; }),
      op("linalg_solve", {a, c},
         [](const Tensors& in) -> Tensors { return {at::linalg_solve(definite(in[0]), in[1])}; }),
      op("linalg_inv", {b},
         [](const Tensors& in) -> Tensors { return {at::linalg_inv(definite(in[0]))}; }),
      op("linalg_eigh", {a},
         [](const Tensors& in) -> Tensors {
           return {std::get<0>(at::linalg_eigh(definite(in[0])))};
         }),
      op("linalg_svdvals", {c},
         [](const Tensors& in) -> Tensors { return {at::linalg_svdvals(in[0])}; }),
      op("linalg_slogdet", {b},
         [](const Tensors& in) -> Tensors {
           return {std::get<1>(at::linalg_slogdet(definite(in[0])))};
         }),
  };
}

std::vector<Layer> complex_ops() {
  const auto x = normal({3, 6}), y = normal({2, 4, 6});
  return {
      op("fft_rfft", {x}, [](const Tensors& in) -> Tensors { return {at::fft_rfft(in[0]).abs()}; }),
      op("fft_irfft", {x},
         [](const Tensors& in) -> Tensors {
           return {at::fft_irfft(at::fft_rfft(in[0]) * at::fft_rfft(in[0].sin()), 6)};
         }),
      op("fft_fft", {x},
         [](const Tensors& in) -> Tensors {
           const auto z = at::fft_fft(in[0], std::nullopt, 0);
           return {at::real(z), at::imag(z)};
         }),
      op("fft_ifft2", {y},
         [](const Tensors& in) -> Tensors {
           return {at::view_as_real(at::fft_ifft2(at::complex(in[0], in[0].cos())))};
         }),
      op("fft_rfftn", {y},
         [](const Tensors& in) -> Tensors { return {at::fft_rfftn(in[0]).angle()}; }),
      op("fft_fftfreq", {x},
         [](const Tensors& in) -> Tensors {
           return {in[0] * at::fft_fftfreq(6, 0.5, in[0].options())};
         }),
      op("complex", {x, x.cos()},
         [](const Tensors& in) -> Tensors {
           const auto z = at::complex(in[0], in[1]);
           return {at::view_as_real(z * z.conj() + z), z.abs()};
         }),
      op("polar", {x.abs() + 1, x},
         [](const Tensors& in) -> Tensors {
           return {at::view_as_real(at::polar(in[0], in[1]) * 2)};
         }),
  };
}

}  // namespace

TEST_CASE("complex numbers and Fourier transforms are captured with their gradients") {
  for (const auto& layer : complex_ops()) {
    INFO(layer.name);
    CHECK_NOTHROW(check_layer(layer));
  }
}

TEST_CASE("ops that order, search and count are captured with their gradients") {
  for (const auto& layer : ordering_ops()) {
    INFO(layer.name);
    CHECK_NOTHROW(check_layer(layer));
  }
}

TEST_CASE("ops of linear algebra are captured with their gradients") {
  for (const auto& layer : matrix_ops()) {
    INFO(layer.name);
    CHECK_NOTHROW(check_layer(layer));
  }
}

}  // namespace perigee::test
