#include "compile/stream.h"

#include <fmt/format.h>

#include <charconv>

#include "base/fail.h"

namespace perigee::compile {
namespace {

std::string end_text(const Stream::End& end) {
  return end.place < 0 ? std::to_string(end.stage) : fmt::format("{}.{}", end.stage, end.place);
}

// Reads the ends of a pipeline stream's name, the text after its colon:
// "pipe:0.1>1.0/0>1", "pipe:0,2".
class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name), rest_(name) {}

  bool at_end() const { return rest_.empty(); }
  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::string_view until(char c) {
    const auto word = rest_.substr(0, rest_.find(c));
    rest_.remove_prefix(word.size());
    return word;
  }
  int64_t number() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) refuse();
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }
  Stream::End end() {
    Stream::End end{.stage = number()};
    if (take('.')) end.place = number();
    return end;
  }
  [[noreturn]] void refuse() const {
    fail("compile", "a stream is named like data,context or pipe:0>1/0>1, but got \"{}\"", name_);
  }

 private:
  std::string_view name_, rest_;
};

}  // namespace

Stream Stream::of(Kind kind) {
  Stream stream;
  stream.kind = kind;
  return stream;
}

Stream Stream::over(mesh::AxisSet axes, int32_t channel) {
  Stream stream = of(Kind::group);
  stream.axes = std::move(axes);
  stream.channel = channel;
  return stream;
}

Stream Stream::of_stages(const std::string& axis, std::vector<int64_t> stages) {
  Stream stream = of(Kind::stages);
  stream.axes.insert(axis);
  stream.stages = std::move(stages);
  return stream;
}

Stream Stream::message(const std::string& axis, End from, End to) {
  Stream stream = of(Kind::message);
  stream.axes.insert(axis);
  stream.from = from;
  stream.to = to;
  return stream;
}

Stream Stream::parse(std::string_view name) {
  for (auto kind : {Kind::compute, Kind::to_host, Kind::from_host}) {
    if (auto stream = of(kind); stream.name() == name) return stream;
  }
  Reader reader(name);
  if (name.find(':') == std::string_view::npos) {
    auto axes = mesh::AxisSet::parse(reader.until('#'));
    const auto channel = reader.take('#') ? reader.number() : 0;
    if (!reader.at_end()) reader.refuse();
    return over(std::move(axes), static_cast<int32_t>(channel));
  }
  const std::string axis(reader.until(':'));
  reader.take(':');
  const auto first = reader.end();
  if (!reader.take('>')) {
    std::vector<int64_t> stages{first.stage};
    while (reader.take(',')) stages.push_back(reader.number());
    if (!reader.at_end()) reader.refuse();
    return of_stages(axis, std::move(stages));
  }
  auto stream = message(axis, first, reader.end());
  if (reader.take('/')) {
    stream.from.part = static_cast<int>(reader.number());
    if (!reader.take('>')) reader.refuse();
    stream.to.part = static_cast<int>(reader.number());
  }
  if (!reader.at_end()) reader.refuse();
  return stream;
}

std::string Stream::name() const {
  switch (kind) {
    case Kind::compute:
      return "compute";
    case Kind::to_host:
      return "to host";
    case Kind::from_host:
      return "from host";
    case Kind::group:
      return channel == 0 ? axes.text() : fmt::format("{}#{}", axes.text(), channel);
    case Kind::stages:
      return fmt::format("{}:{}", axes.text(), fmt::join(stages, ","));
    case Kind::message:
      break;
  }
  auto text = fmt::format("{}:{}>{}", axes.text(), end_text(from), end_text(to));
  if (from.part >= 0) text += fmt::format("/{}>{}", from.part, to.part);
  return text;
}

}  // namespace perigee::compile
