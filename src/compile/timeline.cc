#include "compile/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace perigee::compile {
namespace {

constexpr std::string_view kBegin = "{\"traceEvents\":[\n", kEnd = "\n]}\n";

// In JSON, scopes and op names need no more than this.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

}  // namespace

int64_t overlap(const std::vector<Interval>& intervals) {
  std::vector<std::pair<int64_t, int64_t>> compute;
  for (const auto& i : intervals) {
    if (i.stream == 0) compute.emplace_back(i.begin, i.end);
  }
  int64_t overlapped = 0;
  for (const auto& i : intervals) {
    if (i.stream == 0) continue;
    for (const auto& [begin, end] : compute) {
      overlapped += std::max<int64_t>(0, std::min(end, i.end) - std::max(begin, i.begin));
    }
  }
  return overlapped;
}

std::string chrome_trace(const std::vector<Interval>& intervals, int64_t rank,
                         const std::vector<Stream>& streams, int64_t origin) {
  if (origin == 0) {
    for (const auto& i : intervals) origin = origin == 0 ? i.begin : std::min(origin, i.begin);
  }
  std::string text(kBegin);
  for (size_t stream = 0; stream < streams.size(); ++stream) {
    text += fmt::format(
        R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}},)", rank,
        stream, quoted(streams[stream].name()));
    text += '\n';
  }
  for (const auto& i : intervals) {
    text += fmt::format(
        R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{)",
        quoted(i.name), rank, i.stream, static_cast<double>(i.begin - origin) / 1e3,
        static_cast<double>(i.end - i.begin) / 1e3);
    text += fmt::format(R"("scope":{},"section":{},"phase":"{}","microbatch":{})", quoted(i.scope),
                        quoted(i.section),
                        i.phase == graph::Phase::forward ? "forward" : "backward", i.microbatch);
    if (i.stream > 0) text += fmt::format(R"(,"bytes":{})", i.bytes);
    text += "}},\n";
  }
  text += fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}})",
                      rank, rank);
  return text.append(kEnd);
}

std::string join_traces(const std::vector<std::string>& traces) {
  std::string all(kBegin);
  for (const auto& trace : traces) {
    if (all.size() > kBegin.size()) all += ",\n";
    all += std::string_view(trace).substr(kBegin.size(),
                                          trace.size() - kBegin.size() - kEnd.size());
  }
  return all.append(kEnd);
}

}  // namespace perigee::compile
