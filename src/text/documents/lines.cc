#include "text/documents/lines.h"

#include <cstring>
#include <memory>
#include <string_view>

#include "base/fail.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/terminal/progress.h"
#include "base/text/depth.h"
#include "text/documents/byte_source.h"
#include "text/stream.h"

using nlohmann::ordered_json;

namespace perigee::text {
namespace {

// A batch of lines that are encoded at the same time ends with the line that reaches a limit.
constexpr size_t kLines = 1U << 14;
constexpr size_t kBytes = 4U << 20;

constexpr size_t kPiece = 1U << 18;         // bytes that are read at once
constexpr uint64_t kShownBytes = 8U << 20;  // the progress of a file from this size on is shown

// A line of a file with its number, from 1.
struct Line {
  int64_t number = 0;
  std::string text;
};

class LineReader {
 public:
  explicit LineReader(const std::string& file) : bytes_(open_bytes(file)), piece_(kPiece, '\0') {}

  // Reads the next line that is not empty. Returns false at the end.
  bool next(Line& line) {
    do {
      if (!next_any(line.text)) return false;
    } while (line.text.find_first_not_of(" \t\r") == std::string::npos);
    line.number = number_;
    return true;
  }
  uint64_t position() const { return bytes_->position(); }

 private:
  bool next_any(std::string& text) {
    text.clear();
    bool any = false;
    for (;;) {
      if (rest_.empty()) {
        rest_ = std::string_view(piece_).substr(0, bytes_->read(piece_.data(), piece_.size()));
        if (rest_.empty()) break;
      }
      any = true;
      const auto end = rest_.find('\n');
      text += rest_.substr(0, end);
      rest_.remove_prefix(end == rest_.npos ? rest_.size() : end + 1);
      if (end != rest_.npos) break;
    }
    if (any) ++number_;
    return any;
  }

  std::unique_ptr<ByteSource> bytes_;
  std::string piece_;
  std::string_view rest_;  // the part of the piece that is not read yet
  int64_t number_ = 0;
};

ordered_json parse_line(const std::string& line) {
  check_json_depth(line, "data", "a line");
  try {
    return ordered_json::parse(line);
  } catch (const ordered_json::parse_error& error) {
    fail("data", "a line must be JSON, but its text from byte {} on is not", error.byte);
  } catch (const ordered_json::exception&) {
    fail("data", "a line must be JSON, but has a number that is too large");
  }
}

// Returns the error without its area, where that is "data".
std::string message_of(const Error& error) {
  const std::string text = error.what();
  const std::string own = "[data] ";
  return text.starts_with(own) ? text.substr(own.size()) : text;
}

struct Encoded {
  Document document;
  std::string refused;  // why the line has no document; "": it has one
};

}  // namespace

LinesRead encode_lines(const std::string& file, const LineOptions& options,
                       const std::function<Document(const ordered_json&)>& encode,
                       const std::function<void(Document&&)>& take) {
  LineReader reader(file);
  const auto all = size_of_file(file);
  LinesRead read;
  std::vector<Line> lines;
  size_t bytes = 0;
  bool shown = false;
  const auto finish = [&] {
    std::vector<Encoded> encoded(lines.size());
    in_parallel(lines.size(), [&](size_t i) {
      try {
        encoded[i].document = encode(parse_line(lines[i].text));
      } catch (const Error& error) {
        if (error.status() != Status::invalid) throw;
        encoded[i].refused = message_of(error);
      }
    });
    for (size_t i = 0; i < encoded.size(); ++i) {
      const auto& why = encoded[i].refused;
      if (why.empty()) continue;
      if (!options.skip_broken) fail("data", "{}:{}: {}", file, lines[i].number, why);
      if (read.skipped++ > 0) continue;
      read.first_skipped = fmt::format("line {}: {}", lines[i].number, why);
    }
    for (auto& each : encoded) {
      if (!each.refused.empty()) continue;
      ++read.documents;
      take(std::move(each.document));
    }
    lines.clear();
    bytes = 0;
    if (options.progress && all >= kShownBytes) {
      const auto done = reader.position();
      shown = log::progress({.text = progress_line(file, done, all),
                             .share = double(done) / double(all),
                             .details = {}});
    }
  };
  for (Line line; reader.next(line);) {
    bytes += line.text.size();
    lines.push_back(std::move(line));
    if (lines.size() == kLines || bytes >= kBytes) finish();
  }
  finish();
  if (shown) log::progress("");
  return read;
}

}  // namespace perigee::text
