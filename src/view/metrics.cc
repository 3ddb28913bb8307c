#include "view/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/fail.h"

namespace perigee::view {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kPiece = size_t{1} << 20;

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

bool Metrics::read() {
  const Descriptor file(path_);
  const auto unreadable = [&] {
    fail("metrics", "\"{}\" must be readable, but: {}", path_, std::strerror(errno));
  };
  if (file.get() < 0) {
    if (errno == ENOENT) return false;
    unreadable();
  }
  if (!is_same(file.get())) *this = Metrics(path_);
  const auto before = offset_;
  std::string text, piece(kPiece, '\0');
  for (;;) {
    const auto count = pread(file.get(), piece.data(), piece.size(),
                             offset_ + static_cast<int64_t>(text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) unreadable();
    text.append(piece, 0, static_cast<size_t>(count));
    size_t begin = 0;
    for (auto end = text.find('\n'); end != text.npos; end = text.find('\n', begin)) {
      add(std::string_view(text).substr(begin, end - begin));
      last_ = text.substr(begin, end + 1 - begin);
      begin = end + 1;
    }
    offset_ += static_cast<int64_t>(begin);
    text.erase(0, begin);  // a line that is not whole yet
    if (count == 0) return offset_ != before;
  }
}

// Whether the lines that were read are still there, by the last of them.
bool Metrics::is_same(int file) const {
  std::string line(last_.size(), '\0');
  const auto at = offset_ - static_cast<int64_t>(last_.size());
  return pread(file, line.data(), line.size(), at) == std::ssize(line) && line == last_;
}

void Metrics::add(std::string_view line) {
  const auto row = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) {
    ++damaged_;
    return;
  }
  if (row.contains("summary")) {
    summary_ = row["summary"];
    return;
  }
  ++rows_;
  for (auto& [name, values] : columns_) values.push_back(kNone);
  const auto number = [](const auto& value) {
    if (value.is_boolean()) return value.template get<bool>() ? 1.0 : 0.0;
    return value.is_number() ? value.template get<double>() : kNone;
  };
  for (const auto& [key, value] : row.items()) {
    if (value.is_number() || value.is_boolean() || value.is_null()) {
      set(key, number(value));
    } else if (value.is_array() && key != "bad_samples") {
      for (size_t i = 0; i < value.size(); ++i) {
        set(key + "[" + std::to_string(i) + "]", number(value[i]));
      }
    }
  }
}

void Metrics::set(const std::string& name, double value) {
  auto [column, is_new] = columns_.try_emplace(name);
  if (is_new) {
    names_.push_back(name);
    column->second.assign(static_cast<size_t>(rows_), kNone);
  }
  column->second.back() = value;
}

const std::vector<double>* Metrics::find(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? nullptr : &found->second;
}

}  // namespace perigee::view
