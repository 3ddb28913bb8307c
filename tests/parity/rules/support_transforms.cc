// Cases of Fourier transforms, linear algebra and search.
#include "tests/parity/rules/support_parts.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::ValueId;
using Ints = std::vector<int64_t>;

ValueId complex(Case& c, const Shape& shape) {
  return c.call("aten::complex",
                {{"real", c.real(shape, false)}, {"imag", c.real(shape, false)}})[0];
}

// Stacks of matrices with eigenvalues above 1.
ValueId definite(Case& c, const Shape& shape) {
  const auto stack = c.real(shape, false);
  const auto turned = c.call("aten::transpose.int",
                             {{"self", stack}, {"dim0", int64_t{1}}, {"dim1", int64_t{2}}})[0];
  const auto square = c.call("aten::bmm", {{"self", stack}, {"mat2", turned}})[0];
  return c.call("aten::add.Tensor",
                {{"self", square}, {"other", c.given(at::eye(shape[1], at::kDouble))}})[0];
}

Shape squares(Case& c, int64_t batch) {
  const auto n = c.size(4);
  return {batch, n, n};
}

void fourier(Cases& cases) {
  cases["aten::_fft_r2c"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    c.call("aten::_fft_r2c", {{"self", c.real(shape)},
                              {"dim", Ints{c.any(0, static_cast<int64_t>(shape.size()) - 1)}},
                              {"normalization", int64_t{1}},
                              {"onesided", c.coin()}});
  };
  cases["aten::_fft_c2c"] = [](Case& c) {
    const auto shape = c.sizes(3, 2);
    c.call("aten::_fft_c2c", {{"self", complex(c, shape)},
                              {"dim", c.coin() ? Ints{0} : Ints{1, 0}},
                              {"normalization", int64_t{2}},
                              {"forward", c.coin()}});
  };
  cases["aten::_fft_c2r"] = [](Case& c) {
    const auto batch = c.size(), last = c.size();
    c.call("aten::_fft_c2r", {{"self", complex(c, {batch, last / 2 + 1})},
                              {"dim", Ints{1}},
                              {"normalization", int64_t{2}},
                              {"last_dim_size", last}});
  };
  cases["aten::_conj_physical"] = [](Case& c) {
    c.call("aten::_conj_physical", {{"self", complex(c, c.sizes(3))}});
  };
}

void algebra(Cases& cases) {
  const std::map<std::string, int> of_any = {{"aten::linalg_qr", 2},
                                             {"aten::_linalg_svd", 3},
                                             {"aten::_linalg_det", 3},
                                             {"aten::_linalg_slogdet", 4},
                                             {"aten::linalg_matrix_exp", 1}};
  for (const auto& [op, results] : of_any) {
    cases[op] = [op = op, results = results](Case& c) {
      const auto argument = op == "aten::linalg_matrix_exp" ? "self" : "A";
      c.call(op, {{argument, c.real(squares(c, c.size()), false)}}, results);
    };
  }
  const std::map<std::string, int> of_definite = {
      {"aten::linalg_cholesky_ex", 2}, {"aten::_linalg_eigh", 2}, {"aten::linalg_inv_ex", 2}};
  for (const auto& [op, results] : of_definite) {
    cases[op] = [op = op, results = results](Case& c) {
      const auto argument = op == "aten::linalg_cholesky_ex" ? "self" : "A";
      c.call(op, {{argument, definite(c, squares(c, c.size()))}}, results);
    };
  }
  cases["aten::_linalg_eigh: values alone"] = [](Case& c) {
    c.call("aten::_linalg_eigh", {{"A", definite(c, squares(c, c.size()))}, {"compute_v", false}},
           2);
  };
  const auto solve = [](const std::string& op, const char* a, const char* b, bool second) {
    return [=](Case& c) {
      const auto shape = squares(c, c.size());
      const auto left = definite(c, shape);
      const Shape right = {c.coin(0.8) ? shape[0] : 1, shape[1], c.size()};
      Args args = {{a, left}, {b, c.real(right)}};
      if (second) std::swap(args[0], args[1]);
      if (op == "aten::linalg_solve_triangular") args.emplace_back("upper", c.coin());
      if (op == "aten::_cholesky_solve_helper") args.emplace_back("upper", false);
      c.call(op, args, op == "aten::_linalg_solve_ex" ? 4 : 1);
    };
  };
  cases["aten::_linalg_solve_ex"] = solve("aten::_linalg_solve_ex", "A", "B", false);
  cases["aten::linalg_solve_triangular"] = solve("aten::linalg_solve_triangular", "self", "B",
                                                 false);
  cases["aten::cholesky_solve"] = solve("aten::cholesky_solve", "input2", "self", true);
  cases["aten::_cholesky_solve_helper"] = [](Case& c) {
    const auto shape = squares(c, c.size());
    c.call("aten::_cholesky_solve_helper", {{"self", c.real({shape[0], shape[1], c.size()})},
                                            {"A", definite(c, shape)},
                                            {"upper", false}});
  };
  cases["aten::_linalg_solve_ex: of vectors"] = [](Case& c) {
    const auto shape = squares(c, c.size());
    c.call("aten::_linalg_solve_ex",
           {{"A", definite(c, shape)}, {"B", c.real({shape[0], shape[1]})}}, 4);
  };
  // A matrix for all, in whose shape the batch might be seen.
  cases["aten::linalg_solve_triangular: of one matrix"] = [](Case& c) {
    const auto n = c.size();
    c.call("aten::linalg_solve_triangular", {{"self", definite(c, {n, n, n})},
                                             {"B", c.real({n, n})},
                                             {"upper", c.coin()},
                                             {"left", c.coin()}});
  };
  cases["aten::linalg_lu_solve"] = [](Case& c) {
    const auto shape = squares(c, c.size());
    const auto factors = c.call("aten::_linalg_det", {{"A", c.real(shape, false)}}, 3);
    c.call("aten::linalg_lu_solve", {{"LU", factors[1]},
                                     {"pivots", factors[2]},
                                     {"B", c.real({shape[0], shape[1], c.size()})}});
  };
  cases["aten::addbmm"] = [](Case& c) {
    const auto b = c.size(), n = c.size(), m = c.size(), p = c.size();
    c.call("aten::addbmm", {{"self", c.real({n, p})},
                            {"batch1", c.real({b, n, m})},
                            {"batch2", c.real({b, m, p})},
                            {"beta", 0.5}});
  };
}

void search(Cases& cases) {
  cases["aten::rot90"] = [](Case& c) {
    const auto shape = c.sizes(4, 3);
    c.call("aten::rot90", {{"self", c.real(shape)},
                           {"k", c.any(-1, 3)},
                           {"dims", c.coin() ? Ints{0, -1} : Ints{1, 2}}});
  };
  cases["aten::take"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    int64_t count = 1;
    for (auto size : shape) count *= size;
    c.call("aten::take",
           {{"self", c.real(shape)}, {"index", c.integers(c.sizes(3), 0, count - 1)}});
  };
  cases["aten::isin.Tensor_Tensor"] = [](Case& c) {
    c.call("aten::isin.Tensor_Tensor", {{"elements", c.integers(c.sizes(3), 0, 9)},
                                        {"test_elements", c.integers(c.sizes(2), 0, 9)}});
  };
  const auto sorted = at::arange(-2, 3, at::kDouble);
  cases["aten::bucketize.Tensor"] = [=](Case& c) {
    c.call(
        "aten::bucketize.Tensor",
        {{"self", c.real(c.sizes(3))}, {"boundaries", c.given(sorted)}, {"out_int32", c.coin()}});
  };
  cases["aten::searchsorted.Tensor"] = [=](Case& c) {
    c.call("aten::searchsorted.Tensor",
           {{"sorted_sequence", c.given(sorted)}, {"self", c.real(c.sizes(3, 1))}});
  };
  cases["aten::searchsorted.Tensor: rows"] = [=](Case& c) {
    const auto rows = c.size();
    c.call("aten::searchsorted.Tensor",
           {{"sorted_sequence", c.given(sorted.expand({rows, 5}).contiguous())},
            {"self", c.real({rows, c.size()})},
            {"right", true}});
  };
}

}  // namespace

void add_transform_cases(Cases& cases) {
  fourier(cases);
  algebra(cases);
  search(cases);
}

}  // namespace perigee::parity
