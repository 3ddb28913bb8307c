#include "cuda/nccl/agreement.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace perigee::cuda {

using std::chrono::milliseconds;

std::vector<uint8_t> wait_for(const LaneOptions& options, const std::string& key) {
  constexpr milliseconds kBetweenChecks{200};
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    try {
      options.store->wait({key}, std::min(kBetweenChecks, options.timeout));
      return options.store->get(key);
    } catch (const c10::DistStoreError&) {
      if (options.check) options.check();
      if (std::chrono::steady_clock::now() - begin >= options.timeout) {
        throw std::runtime_error("no answer");
      }
    }
  }
}

// The first member compares the texts and publishes the verdict. It deletes the keys that all have
// read: a member that sets its text has read the verdict of the round before.
bool all_equal(const LaneOptions& options, int64_t round, const std::string& text) {
  const auto verdict = [&](int64_t of) { return fmt::format("{}/equal/{}", options.key, of); };
  const auto text_of = [&](int member) { return fmt::format("{}/{}", verdict(round), member); };
  const std::vector<uint8_t> own(text.begin(), text.end()), yes{1}, no{0};
  auto& store = *options.store;
  if (options.index > 0) {
    store.set(text_of(options.index), own);
    return wait_for(options, verdict(round)) == yes;
  }
  bool equal = true;
  for (int member = 1; member < options.size; ++member) {
    equal = wait_for(options, text_of(member)) == own && equal;
    store.deleteKey(text_of(member));
  }
  if (round > 0) store.deleteKey(verdict(round - 1));
  store.set(verdict(round), equal ? yes : no);
  return equal;
}

}  // namespace perigee::cuda
