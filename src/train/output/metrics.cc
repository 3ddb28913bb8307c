#include "train/output/metrics.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"

namespace perigee::train {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.17g}", value) : "null";
}

std::string list(const std::vector<int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

std::string list(const std::vector<double>& values) {
  std::string text = "[";
  for (const auto value : values)
    text += fmt::format("{}{:.6g}", text.size() > 1 ? "," : "", value);
  return text + "]";
}

// The lines of a file that a resumed run keeps.
struct Kept {
  std::string text;        // lines in the order of steps
  std::string lost_steps;  // of MetricsFile
  bool is_start = true;    // the text is the start of the file
};

// Adds the steps after `before` and before `next` to a list of ranges.
void add_gap(std::string& ranges, int64_t before, int64_t next) {
  if (next - before < 2) return;
  if (!ranges.empty()) ranges += ", ";
  ranges += fmt::format("{}", before + 1);
  if (next - before > 2) ranges += fmt::format(" to {}", next - 1);
}

// A file that was cut short while a run wrote it has a hole of zeros before the run's next line.
Kept kept_lines(std::string_view text, int64_t last) {
  Kept kept;
  int64_t before = -1;  // the last step kept; -1: none
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    auto line = text.substr(begin, end - begin);
    line.remove_prefix(std::min(line.size(), line.find_first_not_of('\0')));
    const auto step = step_of_line(line);
    if (step < std::max<int64_t>(0, before) || step > last) continue;  // -1: another line
    if (before < 0) {
      // A run that began with another run's checkpoint has no earlier steps.
      const bool damaged = begin > 0 || line.size() != end;
      if (damaged) add_gap(kept.lost_steps, 0, step);
    } else {
      add_gap(kept.lost_steps, before, step);
    }
    before = step;
    kept.is_start = kept.is_start && kept.text.size() == begin && line.size() == end - begin;
    kept.text.append(line).push_back('\n');
  }
  add_gap(kept.lost_steps, std::max<int64_t>(0, before), last + 1);
  return kept;
}

}  // namespace

int64_t step_of_line(std::string_view line) {
  const auto value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_object() || !value.contains("step")) return -1;
  const auto& step = value["step"];
  return step.is_number_integer() ? step.get<int64_t>() : -1;
}

std::string to_json(const StepMetrics& m) {
  auto line = fmt::format(
      "{{\"step\":{},\"loss\":{},\"lr\":{},\"grad_norm\":{},\"samples\":{},\"tokens\":{},"
      "\"step_s\":{},\"tokens_per_s\":{},\"peak_bytes\":{}",
      m.step, number(m.loss), number(m.lr), number(m.grad_norm), m.samples, m.tokens,
      number(m.step_s), number(m.tokens_per_s), list(m.peak_bytes));
  if (m.mfu) line += ",\"mfu\":" + number(*m.mfu);
  if (m.val_loss) line += ",\"val_loss\":" + number(*m.val_loss);
  if (m.checkpoint_s) line += ",\"checkpoint_s\":" + number(*m.checkpoint_s);
  if (m.loss_scale) line += ",\"loss_scale\":" + number(*m.loss_scale);
  if (m.skipped) line += ",\"skipped\":true";
  if (!m.bad.empty()) line += ",\"bad\":" + nlohmann::json(m.bad).dump();
  if (!m.bad_samples.empty()) line += ",\"bad_samples\":" + list(m.bad_samples);
  if (m.transient) line += ",\"transient\":true";
  if (!m.compute_s.empty()) {
    line += ",\"compute_s\":" + list(m.compute_s) + ",\"wait_s\":" + list(m.wait_s);
  }
  if (!m.pause_s.empty()) line += ",\"pause_s\":" + list(m.pause_s);
  if (!m.submit_s.empty()) line += ",\"submit_s\":" + list(m.submit_s);
  return line + "}";
}

std::string step_report(const StepMetrics& metrics, const std::vector<compile::Interval>& intervals,
                        const std::map<compile::ValueId, compile::BucketNames>& buckets) {
  auto report = nlohmann::json::parse(to_json(metrics));
  report["sections"] = report["collectives"] = nlohmann::json::array();
  auto& sections = report["sections"];
  if (intervals.empty()) return report.dump();
  struct SectionSpan {
    std::string name;
    int64_t begin = 0, end = 0, busy = 0;
  };
  std::map<std::pair<std::string, int64_t>, SectionSpan> spans;  // by section and microbatch
  int64_t origin = intervals.front().begin;
  for (const auto& interval : intervals) {
    auto [found, first] = spans.try_emplace(
        {interval.section, interval.microbatch},
        SectionSpan{interval.section, interval.begin, interval.end});
    auto& span = found->second;
    span.begin = std::min(span.begin, interval.begin);
    span.end = std::max(span.end, interval.end);
    if (interval.stream == 0) span.busy += interval.end - interval.begin;
    origin = std::min(origin, interval.begin);
  }
  std::vector<std::pair<SectionSpan, int64_t>> ordered;
  for (const auto& [key, span] : spans) ordered.emplace_back(span, key.second);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  for (const auto& [span, microbatch] : ordered) {
    sections.push_back({{"name", span.name},
                        {"microbatch", microbatch},
                        {"begin", 1e-9 * double(span.begin - origin)},
                        {"end", 1e-9 * double(span.end - origin)},
                        {"busy", 1e-9 * double(span.busy)}});
  }
  std::vector<std::pair<const compile::Interval*, const compile::BucketNames*>> sent;
  for (const auto& interval : intervals) {
    const auto bucket = buckets.find(interval.operand);
    if (interval.stream > 0 && bucket != buckets.end()) {
      sent.emplace_back(&interval, &bucket->second);
    }
  }
  std::stable_sort(sent.begin(), sent.end(),
                   [](const auto& a, const auto& b) { return a.first->begin < b.first->begin; });
  for (const auto& [interval, bucket] : sent) {
    report["collectives"].push_back({{"what", bucket->gradients ? "gradients" : "parameters"},
                                     {"parameters", bucket->parameters},
                                     {"op", interval->name},
                                     {"microbatch", interval->microbatch},
                                     {"begin", 1e-9 * double(interval->begin - origin)},
                                     {"end", 1e-9 * double(interval->end - origin)}});
  }
  return report.dump();
}

std::string to_json(const Summary& s) {
  auto line = fmt::format("{{\"summary\":{{\"steps\":{},\"seconds\":{},\"step_s\":{}", s.steps,
                          number(s.seconds), number(s.step_s));
  if (s.predicted_step_s) {
    line += ",\"predicted_step_s\":" + number(*s.predicted_step_s);
    line += ",\"predicted_measured\":" + number(s.predicted_measured);
  }
  line += ",\"peak_bytes\":" + list(s.peak_bytes);
  if (!s.predicted_peak_bytes.empty()) {
    line += ",\"predicted_peak_bytes\":" + list(s.predicted_peak_bytes);
  }
  if (!s.library_bytes.empty()) line += ",\"library_bytes\":" + list(s.library_bytes);
  if (s.checkpoint_bytes > 0) line += fmt::format(",\"checkpoint_bytes\":{}", s.checkpoint_bytes);
  if (s.mfu) line += ",\"mfu\":" + number(*s.mfu);
  if (!s.compute_s.empty()) {
    line += ",\"compute_s\":" + list(s.compute_s) + ",\"wait_s\":" + list(s.wait_s);
  }
  if (s.bad_steps + s.skipped_steps > 0) {
    line += fmt::format(",\"bad_steps\":{},\"spikes\":{},\"skipped_steps\":{}", s.bad_steps,
                        s.spikes, s.skipped_steps);
  }
  if (s.transient_steps > 0) line += fmt::format(",\"transient_steps\":{}", s.transient_steps);
  return line + "}}";
}

MetricsFile::MetricsFile(const std::string& path, int64_t last_step)
    : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (fd_ < 0) fail_run("file", "{} must be written, but: {}", path_, std::strerror(errno));
  try {
    const auto kept = kept_lines(read_file(path, "file"), last_step);
    lost_steps_ = kept.lost_steps;
    size_ = static_cast<int64_t>(kept.text.size());
    if (!kept.is_start) {  // under its name at once: a crash leaves the old file or the new one
      ::close(std::exchange(fd_, -1));
      write_durably(path, kept.text);
      fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    }
    if (fd_ < 0 || ::ftruncate(fd_, size_) != 0) {
      fail_run("file", "{} must be written, but: {}", path_, std::strerror(errno));
    }
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

MetricsFile::~MetricsFile() { ::close(fd_); }

void MetricsFile::write(const StepMetrics& metrics) { append(to_json(metrics)); }
void MetricsFile::write(const Summary& summary) { append(to_json(summary)); }

void MetricsFile::append(std::string line) {
  line += '\n';
  size_t done = 0;
  while (done < line.size()) {
    const auto written = ::pwrite(fd_, line.data() + done, line.size() - done,
                                  size_ + static_cast<int64_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      // If this fails too, the incomplete line is removed when the run is resumed.
      [[maybe_unused]] const int ignored = ::ftruncate(fd_, size_);
      fail_run("file", "{} must be written, but: {}", path_, std::strerror(why));
    }
    done += static_cast<size_t>(written);
  }
  size_ += static_cast<int64_t>(line.size());
}

void MetricsFile::sync() {
  if (::fsync(fd_) != 0 && errno != EINVAL) {
    fail_run("file", "{} must be written, but: {}", path_, std::strerror(errno));
  }
}

}  // namespace perigee::train
