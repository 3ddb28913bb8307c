#include "train/output/finite_weights.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "base/fail.h"
#include "base/log_format.h"
#include "checkpoint/files.h"
#include "train/ranks/share.h"

namespace perigee::train {
namespace {

constexpr int64_t kGrain = int64_t{1} << 20;  // bytes, of a thread
constexpr int64_t kBlock = 4096;              // bytes: the compiler uses vectors for a known length

// Returns whether one of `count` numbers has all bits of its exponent set. `Word`: its bits.
template <class Word>
bool any_not_finite(const std::byte* numbers, int64_t count, Word exponent) {
  const auto find = [&](const std::byte* begin, int64_t length) {
    Word found = 0;
    for (int64_t i = 0; i < length; ++i) {
      Word word;
      std::memcpy(&word, begin + i * int64_t{sizeof word}, sizeof word);
      found |= static_cast<Word>((word & exponent) == exponent);
    }
    return found != 0;
  };
  constexpr int64_t kCount = kBlock / sizeof(Word);
  bool found = false;
  for (; count >= kCount; count -= kCount, numbers += kBlock) found |= find(numbers, kCount);
  return found | find(numbers, count);
}

// The same on all threads.
template <class Word>
bool any_not_finite(std::span<const std::byte> bytes, Word exponent) {
  constexpr int64_t kWidth = sizeof(Word);
  std::atomic<bool> found = false;
  at::parallel_for(0, std::ssize(bytes) / kWidth, kGrain / kWidth, [&](int64_t begin, int64_t end) {
    if (any_not_finite(bytes.data() + begin * kWidth, end - begin, exponent)) found = true;
  });
  return found;
}

bool is_not_finite(const checkpoint::Piece& piece) {
  switch (piece.part.dtype) {
    case graph::DType::float64:
      return any_not_finite<uint64_t>(piece.bytes, 0x7ff0000000000000);
    case graph::DType::float32:
      return any_not_finite<uint32_t>(piece.bytes, 0x7f800000);
    case graph::DType::bfloat16:
      return any_not_finite<uint16_t>(piece.bytes, 0x7f80);
    case graph::DType::float16:
      return any_not_finite<uint16_t>(piece.bytes, 0x7c00);
    default:
      return false;
  }
}

}  // namespace

std::string find_not_finite(std::span<const checkpoint::Piece> pieces,
                            const std::function<bool(const std::string&)>& wanted) {
  for (const auto& piece : pieces) {
    if (wanted(piece.part.name) && is_not_finite(piece)) return checkpoint::key_of(piece.part);
  }
  return "";
}

bool are_weights_finite(const RankTrainer& trainer, std::span<const checkpoint::Piece> pieces,
                        exec::Communicator& communicator, const job::Job& job, int64_t step) {
  std::set<std::string> trained;
  for (const auto& input : trainer.blueprint().training.inputs) {
    if (input.kind == graph::Input::Kind::parameter) trained.insert(input.name);
  }
  for (const auto& name : trainer.spec().frozen) trained.erase(name);
  // "w", "exp_avg:w", "copies:w" and "copies:exp_avg:w" belong to the parameter "w".
  const auto wanted = [&](const std::string& name) {
    for (size_t begin = 0;; begin = name.find(':', begin) + 1) {
      if (trained.contains(name.substr(begin))) return true;
      if (name.find(':', begin) == std::string::npos) return false;
    }
  };
  const auto mine = find_not_finite(pieces, wanted);
  const auto all = gather_texts(mine, *everyone(communicator));
  const auto found = std::find_if(all.begin(), all.end(),
                                  [](const std::string& name) { return !name.empty(); });
  if (found == all.end()) return true;
  const auto what = fmt::format("{} of rank {} has a number that is not finite after step {}",
                                *found, found - all.begin(), step);
  if (job.train.stop_if_not_finite) {
    fail_run("checkpoint",
             "weights must be finite to be saved, but {}: this checkpoint is not written and "
             "earlier ones stay; resume with a lower optimizer.lr",
             what);
  }
  if (communicator.rank() == 0) log::warn("{}: the checkpoint is not written", what);
  return false;
}

}  // namespace perigee::train
