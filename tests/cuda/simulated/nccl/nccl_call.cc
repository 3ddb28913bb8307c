#include "tests/cuda/simulated/nccl/nccl_call.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "exec/comm/reduce.h"

namespace perigee::cuda::simulated {
namespace {

using Call = NcclCall;
using Kind = Call::Kind;

at::ScalarType type_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return at::kFloat;
    case ncclFloat64:
      return at::kDouble;
    case ncclFloat16:
      return at::kHalf;
    case ncclBfloat16:
      return at::kBFloat16;
    case ncclInt64:
      return at::kLong;
    case ncclInt32:
      return at::kInt;
    case ncclInt8:
      return at::kChar;
    default:
      return at::kByte;
  }
}

mesh::Reduce reduction_of(ncclRedOp_t op) {
  switch (op) {
    case ncclMax:
      return mesh::Reduce::max;
    case ncclMin:
      return mesh::Reduce::min;
    case ncclAvg:
      return mesh::Reduce::average;
    default:
      return mesh::Reduce::sum;
  }
}

// Adds in the order of the ranks, with the bits of the CPU's collectives.
void reduce(const std::vector<Call>& calls, size_t first, size_t count, void* to) {
  const auto skipped = first * c10::elementSize(type_of(calls[0].type));
  std::vector<const std::byte*> inputs;
  for (const auto& call : calls) {
    inputs.push_back(static_cast<const std::byte*>(call.from) + skipped);
  }
  auto* output = static_cast<std::byte*>(to);
  exec::reduce_elements(type_of(calls[0].type), inputs, std::span(&output, 1),
                        reduction_of(calls[0].op), 0, static_cast<int64_t>(count));
}

}  // namespace

size_t NcclCall::bytes() const { return count * c10::elementSize(type_of(type)); }

bool fit(const std::vector<Call>& calls) {
  return std::all_of(calls.begin(), calls.end(), [&](const Call& c) {
    const auto& first = calls[0];
    const bool pair = first.kind == Kind::send || first.kind == Kind::receive;
    return c.count == first.count && c.type == first.type && c.op == first.op &&
           (pair || (c.kind == first.kind && c.root == first.root));
  });
}

void perform(std::vector<Call> calls) {
  std::sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) {
    return a.rank < b.rank || (a.rank == b.rank && a.kind < b.kind);
  });
  const size_t count = calls[0].count, bytes = calls[0].bytes();
  std::vector<std::vector<char>> results(calls.size());
  const auto copied = [](const void* from, size_t n) {
    const auto* bytes_of = static_cast<const char*>(from);
    return std::vector<char>(bytes_of, bytes_of + n);
  };
  for (size_t c = 0; c < calls.size(); ++c) {
    auto& result = results[c];
    switch (calls[c].kind) {
      case Kind::all_reduce:
        result.resize(bytes);
        reduce(calls, 0, count, result.data());
        break;
      case Kind::reduce_scatter:
        result.resize(bytes);
        reduce(calls, c * count, count, result.data());
        break;
      case Kind::reduce:
        if (calls[c].rank != calls[c].root) break;
        result.resize(bytes);
        reduce(calls, 0, count, result.data());
        break;
      case Kind::all_gather:
        for (const auto& call : calls) {
          const auto part = copied(call.from, bytes);
          result.insert(result.end(), part.begin(), part.end());
        }
        break;
      case Kind::broadcast:
        result = copied(calls[calls[c].root].from, bytes);
        break;
      case Kind::send:
        break;
      case Kind::receive:
        for (const auto& call : calls) {
          if (call.kind == Kind::send) result = copied(call.from, bytes);
        }
        break;
    }
  }
  for (size_t c = 0; c < calls.size(); ++c) {
    if (!results[c].empty()) std::memcpy(calls[c].to, results[c].data(), results[c].size());
  }
}

Accesses accesses_of(const Call& call, int size) {
  const size_t part = call.bytes(), all = part * static_cast<size_t>(size);
  const bool root = call.rank == call.root;
  switch (call.kind) {
    case Kind::all_reduce:
      return {.reads = {{call.from, part}}, .writes = {{call.to, part}}};
    case Kind::all_gather:
      return {.reads = {{call.from, part}}, .writes = {{call.to, all}}};
    case Kind::reduce_scatter:
      return {.reads = {{call.from, all}}, .writes = {{call.to, part}}};
    case Kind::reduce:
      return {.reads = {{call.from, part}}, .writes = {{call.to, root ? part : 0}}};
    case Kind::broadcast:
      return {.reads = {{call.from, root ? part : 0}}, .writes = {{call.to, part}}};
    case Kind::send:
      return {.reads = {{call.from, part}}, .writes = {}};
    case Kind::receive:
      return {.reads = {}, .writes = {{call.to, part}}};
  }
  return {};
}

}  // namespace perigee::cuda::simulated
