// A run's metrics.jsonl, which a resumed run goes on with (train/output/metrics.h).
#include "base/files/file.h"
#include "tests/fuzz/target.h"
#include "train/output/metrics.h"

using namespace perigee;
using train::MetricsFile;

PERIGEE_FUZZ_TARGET(metrics) {
  const int64_t last = input.empty() ? 0 : static_cast<unsigned char>(input[0]);
  const auto path = fuzz::scratch_file("metrics.jsonl", input.empty() ? input : input.substr(1));
  { const MetricsFile file(path, last); }
  const auto kept = read_file(path, "file");
  fuzz::require(kept.size() < input.size() + 1, "lines are added");
  fuzz::require(kept.empty() || kept.back() == '\n', "an incomplete line is kept");
  const MetricsFile again(path, last);
  fuzz::require(read_file(path, "file") == kept, "a kept line is removed");
}
