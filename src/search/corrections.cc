#include "search/corrections.h"

#include "schedule/schedule.h"
#include "search/space/submeshes.h"

namespace perigee::search {
namespace {

// The samples of a choice, which planned shardings depend on; else whether gradients
// are accumulated.
int64_t samples(const Choice& c) { return c.tensor > 1 ? c.micro : c.microbatches > 1; }

}  // namespace

double Corrections::of(const Choice& choice) const {
  for (const auto& key :
       {of_row(choice), of_schedule(choice), of_kind(choice), of_layers(choice)}) {
    const auto known = ratios_.find(key);
    if (known != ratios_.end()) return known->second;
  }
  return 1;
}

void Corrections::note(const Choice& choice, double ratio) {
  for (const auto& key :
       {of_row(choice), of_schedule(choice), of_kind(choice), of_layers(choice)}) {
    ratios_[key] = ratio;
  }
}

double Corrections::of_bytes(const Choice& choice) const {
  const auto known = bytes_.find(of_memory(choice));
  return known == bytes_.end() ? 1 : known->second;
}

void Corrections::note_bytes(const Choice& choice, double ratio) {
  bytes_[of_memory(choice)] = ratio;
}

Corrections::Key Corrections::of_row(const Choice& c) {
  auto key = of_schedule(c);
  std::get<0>(key) = to_string(c.submeshes);
  return key;
}

Corrections::Key Corrections::of_schedule(const Choice& c) {
  const auto schedule = c.pipe > 1 ? c.schedule : "none";
  return {"", !c.submeshes.empty(), c.zero >= 2, c.tensor > 1, samples(c), c.precision, schedule};
}

Corrections::Key Corrections::of_kind(const Choice& c) {
  const auto* kind = c.pipe == 1 ? "none" : splits_backward(c.schedule) ? "split" : "whole";
  return {"", !c.submeshes.empty(), c.zero >= 2, c.tensor > 1, samples(c), c.precision, kind};
}

Corrections::Key Corrections::of_layers(const Choice& c) {
  auto key = of_kind(c);
  std::get<4>(key) = 0;  // for any samples
  std::get<6>(key) = "";
  return key;
}

Corrections::Memory Corrections::of_memory(const Choice& c) {
  return {to_string(c.submeshes), c.zero, c.tensor > 1, c.microbatches > 1, c.pipe > 1, c.offload};
}

}  // namespace perigee::search
