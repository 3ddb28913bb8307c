// Products with GELU or its gradient in cuBLASLt's epilogue.
#include "exec/ops/activated_product.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/defect.h"
#include "base/fail.h"
#include "base/log_once.h"
#include "cuda/ops/ops.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

constexpr uint32_t kAlignment = 16;  // bytes, of all matrices and vectors

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  int device = -1;
  calls().cudaGetDevice(&device);
  fail_run("cuda",
           "{} on GPU {} must work, but got: {}; without overlap's `activations`, GELU is not "
           "computed by products",
           call, device, calls().cublasLtGetStatusString(status));
}

bool is_aligned(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % kAlignment == 0;
}

// A matrix in memory as cuBLASLt describes it, by columns, of which the transpose is read as is
// (`transposed` is false), or the matrix itself.
struct Layout {
  int64_t rows = 0, columns = 0, stride = 0;
  bool transposed = false;
};

// Returns the layout by which cuBLASLt reads the transpose of t; nothing where neither rows nor
// columns are contiguous, or they begin between multiples of 16 bytes.
std::optional<Layout> transpose_of(const Tensor& t) {
  std::optional<Layout> layout;
  if (t.stride(1) == 1 && t.stride(0) >= t.size(1)) {
    layout = {t.size(1), t.size(0), t.stride(0), false};
  } else if (t.stride(0) == 1 && t.stride(1) >= t.size(0)) {
    layout = {t.size(0), t.size(1), t.stride(1), true};
  }
  if (!layout || !is_aligned(t) || layout->stride * t.element_size() % kAlignment != 0) return {};
  return layout;
}

// An object of cuBLASLt.
template <class T>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(T);
  Owned(T made, Destroy destroy) : made_(made), destroy_(destroy) {}
  ~Owned() { destroy_(made_); }
  Owned(const Owned&) = delete;
  T get() const { return made_; }

 private:
  T made_;
  Destroy destroy_;
};

Owned<cublasLtMatrixLayout_t> make_layout(const Layout& layout, cudaDataType_t type) {
  cublasLtMatrixLayout_t made = nullptr;
  check(calls().cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(layout.rows),
                                           static_cast<uint64_t>(layout.columns), layout.stride),
        "cublasLtMatrixLayoutCreate");
  return {made, calls().cublasLtMatrixLayoutDestroy};
}

struct Epilogue {
  bool gradient = false;  // GELU's, where the product is the upstream gradient; else GELU
  bool pre = false;       // GELU's argument is written, or for the gradient read
  bool vector = false;    // a bias is added, or for the gradient: its gradient is written

  cublasLtEpilogue_t kind() const {
    if (gradient) return vector ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
    if (pre) return vector ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return vector ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
};

// A product of row-major matrices a [rows, inner] and b [inner, columns] with an epilogue. To
// cuBLASLt, whose matrices lie by columns, it is that of their transposes in the other order.
class EpilogueProduct {
 public:
  EpilogueProduct(const Layout& a, const Layout& b, int64_t rows, int64_t columns,
                  cudaDataType_t type, const Epilogue& epilogue)
      : columns_(columns),
        epilogue_(epilogue),
        product_(make_product()),
        left_(make_layout(b, type)),
        right_(make_layout(a, type)),
        result_(make_layout({columns, rows, columns, false}, type)) {
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(b.transposed));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(a.transposed));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue.kind());
  }

  // Returns cuBLASLt's first choice, or nothing where it has no kernel for the epilogue.
  std::optional<cublasLtMatmulAlgo_t> algorithm(const BlasLt& library) {
    // Only the alignment of these addresses counts here.
    const auto place = reinterpret_cast<void*>(uintptr_t{kAlignment});
    set_operands(place, place);
    cublasLtMatmulPreference_t made = nullptr;
    check(calls().cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Owned<cublasLtMatmulPreference_t> wanted(made, calls().cublasLtMatmulPreferenceDestroy);
    const auto want = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
      check(calls().cublasLtMatmulPreferenceSetAttribute(made, name, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{library.workspace_bytes});
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const auto status = calls().cublasLtMatmulAlgoGetHeuristic(
        library.handle, product_.get(), left_.get(), right_.get(), result_.get(), result_.get(),
        made, 1, &found, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    return count > 0 ? std::optional(found.algo) : std::nullopt;
  }

  void run(const BlasLt& library, const cublasLtMatmulAlgo_t& algorithm, const void* a,
           const void* b, void* result, void* pre, void* vector) {
    set_operands(pre, vector);
    const float one = 1, zero = 0;
    check(calls().cublasLtMatmul(library.handle, product_.get(), &one, b, left_.get(), a,
                                 right_.get(), &zero, result, result_.get(), result, result_.get(),
                                 &algorithm, library.workspace, library.workspace_bytes,
                                 current_stream()),
          "cublasLtMatmul");
  }

 private:
  static Owned<cublasLtMatmulDesc_t> make_product() {
    cublasLtMatmulDesc_t made = nullptr;
    check(calls().cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    return {made, calls().cublasLtMatmulDescDestroy};
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, const T& value) {
    check(calls().cublasLtMatmulDescSetAttribute(product_.get(), name, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  void set_operands(void* pre, void* vector) {
    if (epilogue_.vector) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    if (!epilogue_.pre) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pre);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, columns_);
  }

  int64_t columns_;
  Epilogue epilogue_;
  Owned<cublasLtMatmulDesc_t> product_;
  Owned<cublasLtMatrixLayout_t> left_, right_, result_;
};

}  // namespace

Kernel activated_product(const Arguments& a, const OpContext& context) {
  auto apart = exec::compose_product(a,
                                     [&](const exec::Op& op) { return cuda_kernel(op, context); });
  struct Choice {
    bool made = false;
    std::optional<cublasLtMatmulAlgo_t> algorithm;
  };
  const int bias = a.optional_operand("bias"), saved = a.optional_operand("pre");
  const bool gradient = saved >= 0, second = a.wanted(1);
  const Epilogue epilogue = {
      .gradient = gradient, .pre = gradient || second, .vector = gradient ? second : bias >= 0};
  return [=, self = a.operand("self"), mat2 = a.operand("mat2"), shape = a.type().shape,
          choice = std::make_shared<Choice>()](Operands in, Results out, const Draw& draw) {
    const auto &x = in[self], &y = in[mat2];
    const auto left = transpose_of(x), right = transpose_of(y);
    const auto type = x.scalar_type();
    const int64_t rows = x.size(0), columns = y.size(1);
    if (!is_half(type) || !left || !right || rows * x.size(1) * columns == 0 ||
        columns * x.element_size() % kAlignment != 0 || (bias >= 0 && !is_aligned(in[bias])) ||
        (gradient && !is_aligned(in[saved]))) {
      return apart(in, out, draw);
    }
    EpilogueProduct product(*left, *right, rows, columns,
                            type == at::kHalf ? CUDA_R_16F : CUDA_R_16BF, epilogue);
    const auto library = blas_lt();
    if (!std::exchange(choice->made, true)) choice->algorithm = product.algorithm(library);
    if (!choice->algorithm) {
      log::once(
          log::Level::warn,
          fmt::format("cuBLASLt has no kernel for a product [{}, {}] x [{}, {}] with GELU: they "
                      "are computed apart",
                      rows, x.size(1), x.size(1), columns));
      return apart(in, out, draw);
    }
    out[0] = at::empty(shape, x.options());
    void *pre = gradient ? in[saved].data_ptr() : nullptr,
         *vector = bias >= 0 ? in[bias].data_ptr() : nullptr;
    if (second) {
      out[1] = gradient ? at::empty({columns}, x.options())
                        : at::empty({rows, columns}, x.options());
      (gradient ? vector : pre) = out[1].mutable_data_ptr();
    }
    if (!is_aligned(out[0]) || (second && !is_aligned(out[1]))) {
      fail_defect("cuda", "results of products must begin at multiples of {} bytes, but do not",
                  kAlignment);
    }
    product.run(library, *choice->algorithm, x.const_data_ptr(), y.const_data_ptr(),
                out[0].mutable_data_ptr(), pre, vector);
  };
}

}  // namespace perigee::cuda
