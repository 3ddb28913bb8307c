#include "data/data.h"

namespace perigee::data {

Data open_data(const job::Job& job, Cut cut) {
  if (job.data.slice_files && cut.ranks > 1) return open_slices(job, cut);
  if (!job.data.text.empty() || !job.data.tokens.empty()) return open_tokens(job, cut.warn);
  if (!job.data.tensors.empty()) return open_tensors(job);
  return open_synthetic(job);
}

}  // namespace perigee::data
