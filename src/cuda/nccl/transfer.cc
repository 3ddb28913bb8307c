#include "cuda/nccl/transfer.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "base/fail.h"

namespace perigee::cuda {
namespace {

using Kind = exec::Collective::Kind;
using at::Tensor;
using mesh::Reduce;

#define PERIGEE_NCCL(name, ...)                                                    \
  check_nccl(calls().name(__VA_ARGS__, lane.communicator(), lane.stream()), #name, \
             lane.communicator())

ncclRedOp_t operation(Reduce reduce) {
  switch (reduce) {
    case Reduce::max:
      return ncclMax;
    case Reduce::min:
      return ncclMin;
    case Reduce::average:
      return ncclAvg;
    default:
      return ncclSum;
  }
}

// Returns the type that sums are in: that of the reals of complex numbers. Other transfers
// move bytes.
ncclDataType_t summed_type(at::ScalarType type) {
  switch (c10::isComplexType(type) ? c10::toRealValueType(type) : type) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kChar:
      return ncclInt8;
    case at::kByte:
    case at::kBool:
      return ncclUint8;
    default:
      throw std::runtime_error(fmt::format("NCCL does not reduce {}", c10::toString(type)));
  }
}

// Returns the number of values of that type in `elements`.
size_t summed_count(const Tensor& tensor, int64_t elements) {
  return static_cast<size_t>(tensor.is_complex() ? 2 * elements : elements);
}

// Consecutive parts of a buffer.
template <class Pointer>
struct Parts {
  Pointer data;
  size_t element;
  const std::vector<int64_t>& counts;

  // Calls f(position, address, elements) for the parts that are not empty.
  template <class F>
  void each(F f) const {
    auto at = data;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) f(static_cast<int>(i), at, static_cast<size_t>(counts[i]));
      at += static_cast<size_t>(counts[i]) * element;
    }
  }
};

Parts<const char*> parts_of_input(const exec::Transfer& t) {
  return {static_cast<const char*>(t.input.const_data_ptr()),
          static_cast<size_t>(t.input.element_size()), t.input_counts};
}
Parts<char*> parts_of_output(const exec::Transfer& t) {
  return {static_cast<char*>(t.output.mutable_data_ptr()),
          static_cast<size_t>(t.output.element_size()), t.output_counts};
}

bool even(const std::vector<int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t c) { return c == counts.front(); });
}

void all_gather(Lane& lane, const exec::Transfer& t, int index) {
  if (even(t.output_counts)) {
    if (t.input.numel() == 0) return;
    PERIGEE_NCCL(ncclAllGather, t.input.const_data_ptr(), t.output.mutable_data_ptr(),
                 t.input.nbytes(), ncclUint8);
    return;
  }
  // A broadcast of each part, in one launch.
  parts_of_output(t).each([&](int root, char* part, size_t count) {
    const void* from = root == index ? t.input.const_data_ptr() : part;
    PERIGEE_NCCL(ncclBroadcast, from, part, count * static_cast<size_t>(t.output.element_size()),
                 ncclUint8, root);
  });
}

void reduce_scatter(Lane& lane, const exec::Transfer& t) {
  const auto type = summed_type(t.input.scalar_type());
  auto* output = t.output.mutable_data_ptr();
  if (even(t.input_counts)) {
    if (t.output.numel() == 0) return;
    PERIGEE_NCCL(ncclReduceScatter, t.input.const_data_ptr(), output,
                 summed_count(t.output, t.output.numel()), type, operation(t.reduce));
    return;
  }
  // A reduction to each rank, in one launch.
  parts_of_input(t).each([&](int root, const char* part, size_t count) {
    const auto values = summed_count(t.input, static_cast<int64_t>(count));
    PERIGEE_NCCL(ncclReduce, part, output, values, type, operation(t.reduce), root);
  });
}

void all_to_all(Lane& lane, const exec::Transfer& t) {
  parts_of_input(t).each([&](int peer, const char* part, size_t count) {
    PERIGEE_NCCL(ncclSend, part, count * static_cast<size_t>(t.input.element_size()), ncclUint8,
                 peer);
  });
  parts_of_output(t).each([&](int peer, char* part, size_t count) {
    PERIGEE_NCCL(ncclRecv, part, count * static_cast<size_t>(t.output.element_size()), ncclUint8,
                 peer);
  });
}

}  // namespace

void submit_collective(Lane& lane, const exec::Transfer& t, int64_t index, float* scratch) {
  lane.submit([&] {
    switch (t.kind) {
      case Kind::all_reduce:
        if (t.output.numel() == 0) return;
        PERIGEE_NCCL(ncclAllReduce, t.input.const_data_ptr(), t.output.mutable_data_ptr(),
                     summed_count(t.output, t.output.numel()), summed_type(t.output.scalar_type()),
                     operation(t.reduce));
        return;
      case Kind::all_gather:
        return all_gather(lane, t, static_cast<int>(index));
      case Kind::reduce_scatter:
        return reduce_scatter(lane, t);
      case Kind::all_to_all:
        return all_to_all(lane, t);
      case Kind::broadcast: {
        if (t.output.numel() == 0) return;
        auto* output = t.output.mutable_data_ptr();
        PERIGEE_NCCL(ncclBroadcast, t.peer == index ? t.input.const_data_ptr() : output, output,
                     t.output.nbytes(), ncclUint8, static_cast<int>(t.peer));
        return;
      }
      case Kind::barrier:
        PERIGEE_NCCL(ncclAllReduce, scratch, scratch, 1, ncclFloat32, ncclSum);
        return;
      case Kind::send:
      case Kind::receive:
        return;  // submit_message
    }
  });
}

void submit_message(Lane& lane, const exec::Transfer& t, int peer) {
  lane.submit([&] {
    if (t.kind == Kind::send) {
      if (t.input.numel() == 0) return;
      PERIGEE_NCCL(ncclSend, t.input.const_data_ptr(), t.input.nbytes(), ncclUint8, peer);
    } else {
      if (t.output.numel() == 0) return;
      PERIGEE_NCCL(ncclRecv, t.output.mutable_data_ptr(), t.output.nbytes(), ncclUint8, peer);
    }
  });
}

void submit_byte(Lane& lane, void* byte, bool sends) {
  lane.submit([&] {
    if (sends) {
      PERIGEE_NCCL(ncclSend, byte, 1, ncclUint8, 1);
    } else {
      PERIGEE_NCCL(ncclRecv, byte, 1, ncclUint8, 0);
    }
  });
}

#undef PERIGEE_NCCL

}  // namespace perigee::cuda
