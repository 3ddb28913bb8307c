// cuBLASLt's products with epilogues, on matrices of host memory by columns. It refuses what its
// documentation does not allow, and algorithms that it chose for other products.
#include "tests/cuda/simulated/blas_lt.h"

#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace perigee::cuda::simulated {

bool knows_epilogues = true;

namespace {

struct Product {
  int32_t left = CUBLAS_OP_N, right = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *vector = nullptr, *aux = nullptr;
  int64_t aux_stride = 0;
};

struct Layout {
  cudaDataType_t type;
  int64_t rows, columns, stride;
};

struct Preference {
  uint64_t workspace = 0;
  std::map<int, uint32_t> alignments;  // by attribute
};

template <class T, class Handle>
T& of(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}

template <class T, class Handle>
cublasStatus_t destroy(Handle handle) {
  delete reinterpret_cast<T*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

bool has(cublasLtEpilogue_t epilogue, int part) { return (epilogue & part) != 0; }
constexpr int kBias = 4, kGradientOfBias = 16, kGelu = 32, kGradient = 64, kAux = 128;

cublasStatus_t set_of_product(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t name,
                              const void* value, size_t bytes) {
  auto& product = of<Product>(handle);
  const auto copy = [&](auto& to) {
    if (bytes != sizeof(to)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return copy(product.left);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return copy(product.right);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return copy(product.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return copy(product.vector);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return copy(product.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return copy(product.aux_stride);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t set_of_preference(cublasLtMatmulPreference_t handle,
                                 cublasLtMatmulPreferenceAttributes_t name, const void* value,
                                 size_t bytes) {
  auto& preference = of<Preference>(handle);
  if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == 8) {
    std::memcpy(&preference.workspace, value, bytes);
  } else if (bytes == 4) {
    std::memcpy(&preference.alignments[name], value, bytes);
  } else {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

// What an algorithm is for; it lies in the algorithm's data.
struct Key {
  Product product;  // addresses are alignments
  Layout left, right, result;
};

// Returns the bytes of 16 at which an address begins, as an address.
void* alignment_of(const void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) % 16);
}

bool fits(const Product& product, const Layout& left, const Layout& right, const Layout& result) {
  const bool turns_left = product.left == CUBLAS_OP_T, turns_right = product.right == CUBLAS_OP_T;
  const auto inner = turns_left ? left.rows : left.columns;
  const auto whole = [](const Layout& m) { return m.stride >= m.rows; };
  return (turns_left ? left.columns : left.rows) == result.rows &&
         (turns_right ? right.columns : right.rows) == inner &&
         (turns_right ? right.rows : right.columns) == result.columns && whole(left) &&
         whole(right) && whole(result) && left.type == right.type && left.type == result.type &&
         has(product.epilogue, kAux) == (product.aux != nullptr) &&
         has(product.epilogue, kBias | kGradientOfBias) == (product.vector != nullptr) &&
         (!product.aux || (product.aux_stride % 8 == 0 && product.aux_stride >= result.rows));
}

std::mutex lock;
std::vector<Key> keys;  // of all algorithms

bool same(const Key& a, const Key& b) {
  const auto same_layout = [](const Layout& m, const Layout& n) {
    return m.type == n.type && m.rows == n.rows && m.columns == n.columns && m.stride == n.stride;
  };
  const auto &p = a.product, &q = b.product;
  return p.left == q.left && p.right == q.right && p.epilogue == q.epilogue &&
         alignment_of(p.vector) == alignment_of(q.vector) &&
         alignment_of(p.aux) == alignment_of(q.aux) && p.aux_stride == q.aux_stride &&
         same_layout(a.left, b.left) && same_layout(a.right, b.right) &&
         same_layout(a.result, b.result);
}

cublasStatus_t choose(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t left,
                      cublasLtMatrixLayout_t right, cublasLtMatrixLayout_t,
                      cublasLtMatrixLayout_t result, cublasLtMatmulPreference_t preference,
                      int wanted, cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  const Key key = {of<Product>(product), of<Layout>(left), of<Layout>(right), of<Layout>(result)};
  if (!knows_epilogues) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto& alignments = of<Preference>(preference).alignments;
  const bool all_16 = alignments.size() == 4 &&
                      std::ranges::all_of(alignments, [](const auto& a) { return a.second == 16; });
  if (wanted < 1 || !all_16 || !fits(key.product, key.left, key.right, key.result)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const std::lock_guard held(lock);
  found[0].algo.data[0] = keys.size();
  keys.push_back(key);
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

at::ScalarType type_of(cudaDataType_t type) {
  return type == CUDA_R_16F ? at::kHalf : at::kBFloat16;
}

// Returns the matrix in float32.
at::Tensor matrix(const void* data, const Layout& layout, bool turned = false) {
  const auto t = at::from_blob(const_cast<void*>(data), {layout.rows, layout.columns},
                               {1, layout.stride}, type_of(layout.type))
                     .to(at::kFloat);
  return turned ? t.t() : t;
}

void write(void* data, const Layout& layout, const at::Tensor& values) {
  at::from_blob(data, {layout.rows, layout.columns}, {1, layout.stride}, type_of(layout.type))
      .copy_(values);
}

cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t handle, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t left, const void* b,
                        cublasLtMatrixLayout_t right, const void* beta, const void*,
                        cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t result,
                        const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t) {
  const Key key = {of<Product>(handle), of<Layout>(left), of<Layout>(right), of<Layout>(result)};
  const auto& product = key.product;
  {
    const std::lock_guard held(lock);
    const auto number = algorithm->data[0];
    if (number >= keys.size() || !same(keys[number], key)) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (alignment_of(a) || alignment_of(b) || alignment_of(d) ||
      *static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Layout vector = {key.result.type, key.result.rows, 1, key.result.rows},
               aux = {key.result.type, key.result.rows, key.result.columns, product.aux_stride};
  auto values = at::mm(matrix(a, key.left, product.left == CUBLAS_OP_T),
                       matrix(b, key.right, product.right == CUBLAS_OP_T));
  if (has(product.epilogue, kBias)) values = values + matrix(product.vector, vector);
  if (has(product.epilogue, kGradient)) {
    values = at::gelu_backward(values, matrix(product.aux, aux), "tanh");
    if (has(product.epilogue, kGradientOfBias)) {
      write(product.vector, vector, values.sum(1, /*keepdim=*/true));
    }
  } else if (has(product.epilogue, kGelu)) {
    if (has(product.epilogue, kAux)) write(product.aux, aux, values);
    values = at::gelu(values, "tanh");
  }
  write(d, key.result, values);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

void add_blas_lt(Calls& t) {
  t.cublasLtGetStatusString = [](cublasStatus_t) { return "the simulated cuBLASLt refuses it"; };
  t.cublasLtMatmul = multiply;
  t.cublasLtMatmulAlgoGetHeuristic = choose;
  t.cublasLtMatmulDescCreate = [](cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                  cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
    return CUBLAS_STATUS_SUCCESS;
  };
  t.cublasLtMatmulDescDestroy = destroy<Product, cublasLtMatmulDesc_t>;
  t.cublasLtMatmulDescSetAttribute = set_of_product;
  t.cublasLtMatmulPreferenceCreate = [](cublasLtMatmulPreference_t* made) {
    *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
  };
  t.cublasLtMatmulPreferenceDestroy = destroy<Preference, cublasLtMatmulPreference_t>;
  t.cublasLtMatmulPreferenceSetAttribute = set_of_preference;
  t.cublasLtMatrixLayoutCreate = [](cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                    uint64_t columns, int64_t stride) {
    *made = reinterpret_cast<cublasLtMatrixLayout_t>(
        new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride});
    return CUBLAS_STATUS_SUCCESS;
  };
  t.cublasLtMatrixLayoutDestroy = destroy<Layout, cublasLtMatrixLayout_t>;
}

}  // namespace perigee::cuda::simulated
