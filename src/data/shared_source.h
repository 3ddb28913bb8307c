// One data source for several ranks.
#pragma once

#include <mutex>

#include "base/fail.h"
#include "data/data.h"

namespace perigee {

// A data source that the ranks of one process share; one rank reads at a time.
class SharedSource : public DataSource {
 public:
  explicit SharedSource(DataSource& source) : source_(source) {}
  Batch at(int64_t step, Range samples) override {
    std::lock_guard lock(mutex_);
    try {
      return source_.at(step, samples);
    } catch (const std::exception&) {
      throw;
    } catch (...) {  // would end the process, where ranks are threads
      fail_run("data", "the data source threw an exception that is no std::exception");
    }
  }

 private:
  DataSource& source_;
  std::mutex mutex_;
};

}  // namespace perigee
