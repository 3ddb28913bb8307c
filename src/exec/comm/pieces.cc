#include "exec/comm/pieces.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "exec/comm/reduce.h"

namespace perigee::exec {
namespace {

using Kind = Collective::Kind;

constexpr int64_t kPiece = 32768;       // elements of a sum
constexpr int64_t kCopied = 256 << 10;  // bytes of a copy
constexpr int64_t kStreamed = 8 << 20;  // bytes of a sum that no cache holds until it is read

int64_t pieces(int64_t length, int64_t piece) {
  return std::max<int64_t>(1, (length + piece - 1) / piece);
}

int64_t sum_before(std::span<const int64_t> counts, int64_t index) {
  return std::accumulate(counts.begin(), counts.begin() + index, int64_t{0});
}

int64_t largest(std::span<const int64_t> counts) {
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

// Addresses of a few ranks without an allocation.
template <class T>
class Addresses {
 public:
  explicit Addresses(size_t count) : count_(count) {
    if (count > few_.size()) many_.resize(count);
  }
  T& operator[](size_t i) { return count_ > few_.size() ? many_[i] : few_[i]; }
  std::span<const T> all() const {
    return count_ > few_.size() ? std::span<const T>(many_) : std::span(few_).first(count_);
  }

 private:
  size_t count_;
  std::array<T, 16> few_{};
  std::vector<T> many_;
};

struct Part {
  const Operands* from;
  int64_t first;  // element of the input
  const Operands* to;
  int64_t at;  // element of the output
  int64_t count;
};

// Copies the k-th `kCopied` bytes of a part.
void copy_part(const Part& part, int64_t k, int64_t size) {
  const int64_t begin = k * kCopied, bytes = std::min(part.count * size - begin, kCopied);
  if (bytes <= 0) return;
  const auto* source = part.from->input + part.first * size + begin;
  auto* target = part.to->output + part.at * size + begin;
  if (source != target) std::memmove(target, source, static_cast<size_t>(bytes));
}

// Returns the largest part that a collective without a sum copies from one rank to another.
int64_t largest_part(const JointTransfer& t) {
  int64_t most = 0;
  for (const auto& rank : t.ranks) {
    switch (t.kind) {
      case Kind::all_gather:
        most = std::max(most, rank.input_elements);
        break;
      case Kind::all_to_all:
        most = std::max(most, largest(rank.input_counts));
        break;
      default:
        most = std::max({most, rank.input_elements, rank.output_elements});
    }
  }
  return most;
}

int64_t copies_of_part(const JointTransfer& t) {
  return pieces(largest_part(t) * static_cast<int64_t>(c10::elementSize(t.type)), kCopied);
}

void run_all_reduce(const JointTransfer& t, int64_t piece) {
  const auto n = t.ranks.size();
  Addresses<const std::byte*> inputs(n);
  Addresses<std::byte*> outputs(n);
  for (size_t i = 0; i < n; ++i) {
    inputs[i] = t.ranks[i].input;
    outputs[i] = t.ranks[i].output;
  }
  const int64_t begin = piece * kPiece;
  const int64_t end = std::min(begin + kPiece, t.ranks[0].input_elements);
  const auto bytes = t.ranks[0].input_elements * static_cast<int64_t>(c10::elementSize(t.type));
  reduce_elements(t.type, inputs.all(), outputs.all(), t.reduce, begin, end, bytes >= kStreamed);
}

// Piece k of each rank's part: all parts have as many pieces as the largest.
void run_reduce_scatter(const JointTransfer& t, int64_t piece) {
  const auto n = t.ranks.size();
  const auto counts = t.ranks[0].input_counts;
  const auto per_part = pieces(largest(counts), kPiece);
  const int64_t part = piece / per_part, begin = piece % per_part * kPiece;
  const int64_t end = std::min(begin + kPiece, counts[part]);
  if (begin >= end) return;
  const auto offset = sum_before(counts, part) * static_cast<int64_t>(c10::elementSize(t.type));
  Addresses<const std::byte*> inputs(n);
  for (size_t i = 0; i < n; ++i) inputs[i] = t.ranks[i].input + offset;
  std::byte* const output = t.ranks[part].output;
  reduce_elements(t.type, inputs.all(), std::span(&output, 1), t.reduce, begin, end);
}

}  // namespace

Call call_of(const Transfer& t) {
  Call call{.kind = t.kind, .reduce = t.reduce, .peer = t.peer};
  if (t.input.defined()) {
    call.type = t.input.scalar_type();
    call.operands.input = static_cast<const std::byte*>(t.input.const_data_ptr());
    call.operands.input_elements = t.input.numel();
  }
  if (t.output.defined()) {
    call.type = t.output.scalar_type();
    call.operands.output = static_cast<std::byte*>(t.output.mutable_data_ptr());
    call.operands.output_elements = t.output.numel();
  }
  call.operands.input_counts = t.input_counts;
  call.operands.output_counts = t.output_counts;
  return call;
}

int64_t pieces_of(const JointTransfer& t) {
  const auto n = std::ssize(t.ranks);
  switch (t.kind) {
    case Kind::all_reduce:
      return pieces(t.ranks[0].input_elements, kPiece);
    case Kind::reduce_scatter:
      return n * pieces(largest(t.ranks[0].input_counts), kPiece);
    case Kind::all_gather:
    case Kind::all_to_all:
      return n * n * copies_of_part(t);
    case Kind::broadcast:
      return n * copies_of_part(t);
    case Kind::send:
    case Kind::receive:
      return copies_of_part(t);
    case Kind::barrier:
      return 1;
  }
  return 1;
}

void run_piece(const JointTransfer& t, int64_t piece) {
  const auto n = std::ssize(t.ranks);
  const auto size = static_cast<int64_t>(c10::elementSize(t.type));
  switch (t.kind) {
    case Kind::all_reduce:
      return run_all_reduce(t, piece);
    case Kind::reduce_scatter:
      return run_reduce_scatter(t, piece);
    case Kind::all_gather:
    case Kind::all_to_all: {
      const auto copies = copies_of_part(t), pair = piece / copies;
      const auto from = pair / n, to = pair % n;
      const auto &sender = t.ranks[from], &receiver = t.ranks[to];
      const bool gathers = t.kind == Kind::all_gather;
      return copy_part({.from = &sender,
                        .first = gathers ? 0 : sum_before(sender.input_counts, to),
                        .to = &receiver,
                        .at = sum_before(receiver.output_counts, from),
                        .count = gathers ? sender.input_elements : sender.input_counts[to]},
                       piece % copies, size);
    }
    case Kind::broadcast: {
      const auto copies = copies_of_part(t);
      const auto &root = t.ranks[t.peer], &to = t.ranks[piece / copies];
      return copy_part({&root, 0, &to, 0, root.input_elements}, piece % copies, size);
    }
    case Kind::send:
    case Kind::receive:
      return copy_part({&t.ranks[0], 0, &t.ranks[1], 0, t.ranks[0].input_elements}, piece, size);
    case Kind::barrier:
      return;
  }
}

std::string mismatch(std::span<const Call> calls, const std::string& group) {
  const auto& first = calls[0];
  const auto elements = [](const Call& call) {
    return call.operands.input ? call.operands.input_elements : call.operands.output_elements;
  };
  for (const auto& call : calls) {
    const bool pair = first.kind == Kind::send && call.kind == Kind::receive;
    const bool sizes = elements(call) == elements(first) || call.kind == Kind::all_gather ||
                       call.kind == Kind::all_to_all;
    const bool roots = call.kind != Kind::broadcast || call.peer == first.peer;
    if ((call.kind != first.kind && !pair) || !sizes || !roots || call.type != first.type ||
        call.reduce != first.reduce) {
      return fmt::format(
          "all ranks of {} must start the same collective, but got {} of {} {} and {} of {} {}",
          group, name_of(first.kind), elements(first), c10::toString(first.type),
          name_of(call.kind), elements(call), c10::toString(call.type));
    }
  }
  // The part that each rank sends is the part that the other one expects.
  const auto n = std::ssize(calls);
  for (int64_t from = 0; from < n; ++from) {
    for (int64_t to = 0; to < n; ++to) {
      const auto &sender = calls[from].operands, &receiver = calls[to].operands;
      int64_t sent = 0, expected = 0;
      if (first.kind == Kind::all_gather) {
        sent = sender.input_elements, expected = receiver.output_counts[from];
      } else if (first.kind == Kind::all_to_all) {
        sent = sender.input_counts[to], expected = receiver.output_counts[from];
      } else if (first.kind == Kind::reduce_scatter) {
        sent = sender.input_counts[to], expected = receiver.output_elements;
      }
      if (sent == expected) continue;
      return fmt::format(
          "all ranks of {} must start the same collective, but in {} position {} has {} elements "
          "for position {}, which expects {}",
          group, name_of(first.kind), from, sent, to, expected);
    }
  }
  return "";
}

}  // namespace perigee::exec
