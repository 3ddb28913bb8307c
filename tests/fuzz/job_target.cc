// A job's TOML (job/job.h).
#include "job/job.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(job) {
  // A pattern such as "/*/*/*" lists the machine's whole file system: not a matter of the parser.
  const bool lists = input.find('/') != input.npos && input.find_first_of("*?") != input.npos;
  if (lists) return;
  const auto parsed = job::Job::parse(input, "job.toml");
  const auto text = job::to_toml(parsed);
  const auto again = fuzz::accepted("a printed job is refused",
                                    [&] { return job::Job::parse(text, "job.toml"); });
  fuzz::require(job::to_toml(again) == text, "a printed job is another job");
  if (!parsed.dialect.name.empty()) to_json(parsed.dialect);
  shared_keys(parsed);
}
