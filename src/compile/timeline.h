// Time lines of streams: recorded by the executor or predicted by the simulator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/stream.h"
#include "graph/graph.h"

namespace perigee::compile {

// A stretch of time in which a stream was busy; nanoseconds of some clock.
struct Interval {
  std::string name;  // the op
  std::string scope;
  std::string section;
  int32_t stream = 0;  // of Program::streams; 0 computes
  int64_t microbatch = 0;
  graph::Phase phase = graph::Phase::forward;
  int64_t bytes = 0;  // a collective's operand on this rank
  int64_t begin = 0, end = 0;
  graph::ValueId operand;  // recorded: a collective's operand, a value of the program
};

// Returns the nanoseconds in which a communication stream and the compute stream were both busy.
int64_t overlap(const std::vector<Interval>& intervals);

// Writes the intervals of a rank as Chrome trace events (chrome://tracing, Perfetto): one process a
// rank, one thread a stream. `streams` are the program's. Times count from `origin`, or from the
// first interval where it is 0.
std::string chrome_trace(const std::vector<Interval>& intervals, int64_t rank,
                         const std::vector<Stream>& streams, int64_t origin = 0);
// Returns the traces of several ranks as one.
std::string join_traces(const std::vector<std::string>& traces);

}  // namespace perigee::compile
