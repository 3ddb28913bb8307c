#include "data/data.h"

namespace perigee::data {

Data open_data(const job::Job& job, Division division, const IdLimit& limit) {
  if (job.data.slice_files && division.ranks > 1) return open_slices(job, division, limit);
  if (!job.data.token_sources().empty()) return open_tokens(job, division.warn, limit);
  if (!job.data.tensors.empty()) return open_tensors(job, limit);
  return open_synthetic(job);
}

}  // namespace perigee::data
