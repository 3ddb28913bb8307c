#include "capture/device/tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>

#include "capture/device/device.h"

namespace perigee::tracing {
namespace {

constexpr c10::DispatchKeySet keys({c10::DispatchKey::PrivateUse1,
                                    c10::DispatchKey::AutogradPrivateUse1});

// Large enough for any view; no memory is allocated.
constexpr int64_t storage_bytes = int64_t{1} << 60;

}  // namespace

CaptureTensor::CaptureTensor(c10::Storage storage, const at::Tensor& meta, graph::ValueId value,
                             uint64_t session)
    : c10::TensorImpl(std::move(storage), keys, meta.dtype()),
      meta_(meta),
      value_(value),
      session_(session) {
  set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
}

c10::intrusive_ptr<c10::TensorImpl> CaptureTensor::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<CaptureTensor>(c10::Storage(storage()), meta_, value_, session_);
  copy_tensor_metadata(this, copy.get(), version, allow_tensor_metadata_change);
  copy->refresh_numel();
  copy->refresh_contiguous();
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> CaptureTensor::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_tensor_metadata_change) const {
  return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version),
                                 allow_tensor_metadata_change);
}

at::Tensor make_capture_tensor(const at::Tensor& meta, graph::ValueId value, uint64_t session,
                               const at::Tensor& share) {
  auto storage = share.defined()
                     ? share.storage()
                     : c10::Storage(c10::Storage::use_byte_size_t(), c10::SymInt(storage_bytes),
                                    c10::DataPtr(nullptr, capture_device), no_memory_allocator(),
                                    true);
  return at::detail::make_tensor<CaptureTensor>(std::move(storage), meta, value, session);
}

const CaptureTensor* captured(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().has(c10::DispatchKey::Functionalize)) {
    impl = static_cast<const at::FunctionalTensorWrapper*>(impl)->value().unsafeGetTensorImpl();
  }
  if (impl->device_type() != c10::kPrivateUse1) return nullptr;
  return dynamic_cast<const CaptureTensor*>(impl);
}

at::Tensor meta_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_meta(sizes, type, std::nullopt);
}

}  // namespace perigee::tracing
