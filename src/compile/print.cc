#include <fmt/format.h>

#include <iterator>
#include <map>
#include <type_traits>

#include "base/text/bytes.h"
#include "compile/draft/draft.h"
#include "compile/draft/layout.h"
#include "compile/program.h"

namespace perigee::compile {

namespace {

constexpr const char* kFrames[] = {"persistent", "microbatch", "scratch", "communication"};
constexpr const char* kBindings[] = {"parameter", "buffer", "state", "data",
                                     "constant",  "scalar", "result"};

std::string shared_by(const Frame& frame) {
  return frame.holders > 1 ? fmt::format(", one copy of {} ranks", frame.holders) : "";
}

std::string list(const std::vector<int64_t>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

class Text {
 public:
  explicit Text(const Program& program) : program_(program) {}

  std::string value(ValueId v) const { return v.defined() ? fmt::format("%{}", v.index) : "_"; }

  std::string arg(const graph::Arg& arg) const {
    return std::visit(
        [&](const auto& a) -> std::string {
          using T = std::decay_t<decltype(a)>;
          if constexpr (std::is_same_v<T, std::monostate>) {
            return "None";
          } else if constexpr (std::is_same_v<T, ValueId>) {
            return value(a);
          } else if constexpr (std::is_same_v<T, std::vector<ValueId>>) {
            std::string text = "[";
            for (auto v : a) text += (text.size() > 1 ? ", " : "") + value(v);
            return text + "]";
          } else if constexpr (std::is_same_v<T, std::string>) {
            return fmt::format("\"{}\"", a);
          } else if constexpr (std::is_same_v<T, graph::DType>) {
            return std::string(graph::name_of(a));
          } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
            std::string text = "[";
            for (bool b : a)
              text += text.size() > 1 ? (b ? ", true" : ", false") : b ? "true" : "false";
            return text + "]";
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>> ||
                               std::is_same_v<T, std::vector<double>>) {
            return fmt::format("[{}]", fmt::join(a, ", "));
          } else {
            return fmt::format("{}", a);
          }
        },
        arg);
  }

  std::string place(const Address& place) const {
    if (place.frame < 0) return "nowhere";
    return fmt::format("{}+{}", program_.frames[place.frame].name, place.offset);
  }

  std::string declaration(ValueId v) const {
    const auto& value = program_.values[v.index];
    std::string text = fmt::format("{}: {}{}", this->value(v), graph::name_of(value.type.dtype),
                                   list(value.type.shape));
    if (!is_contiguous(value.type.shape, value.strides)) {
      text += " strides " + list(value.strides);
    }
    text += " at " + place(value.place);
    return text;
  }

  std::string instruction(const Instruction& instruction) const {
    std::string text;
    auto out = std::back_inserter(text);
    if (instruction.kind == Instruction::Kind::wait) {
      fmt::format_to(out, "wait event {}", instruction.event);
    } else {
      for (auto v : instruction.outputs) {
        if (instruction.in_place) continue;
        fmt::format_to(out, "{}{}", text.empty() ? "" : ", ",
                       v.defined() ? declaration(v) : std::string("_"));
      }
      if (!text.empty()) text += " = ";
      if (instruction.kind == Instruction::Kind::load) {
        fmt::format_to(out, "load \"{}\"", instruction.op);
      } else {
        fmt::format_to(out, "{}(", instruction.op);
        for (size_t a = 0; a < instruction.args.size(); ++a) {
          fmt::format_to(out, "{}{}={}", a ? ", " : "", instruction.args[a].first,
                         arg(instruction.args[a].second));
        }
        text += ')';
      }
    }
    if (instruction.kind == Instruction::Kind::collective) {
      fmt::format_to(out, " on {} event {}", program_.streams[instruction.stream].name(),
                     instruction.event);
    }
    std::string temporaries;
    for (const auto& allocation : instruction.allocations) {
      bool result = false;
      for (auto v : instruction.outputs) {
        result = result || (v.defined() && program_.values[v.index].place == allocation.place);
      }
      if (result) continue;
      temporaries += fmt::format("{}{} at {}", temporaries.empty() ? "" : ", ", allocation.bytes,
                                 place(allocation.place));
    }
    if (!temporaries.empty()) text += " with " + temporaries;
    if (!instruction.traced) text += " untraced";
    if (!instruction.releases.empty()) {
      text += " releases";
      for (auto v : instruction.releases) text += " " + value(v);
    }
    if (!instruction.scope.empty()) text += "   @" + instruction.scope;
    return text;
  }

 private:
  const Program& program_;
};

}  // namespace

const Binding* Program::find(Binding::Kind kind, std::string_view name) const {
  for (const auto& binding : bindings) {
    if (binding.kind == kind && binding.name == name) return &binding;
  }
  return nullptr;
}

std::string print(const Program& program) {
  const Text text(program);
  std::string out;
  auto to = std::back_inserter(out);
  fmt::format_to(to, "program of rank {}, {} microbatch{}, {} bytes{}\n", program.rank,
                 program.microbatches, program.microbatches == 1 ? "" : "es", program.peak_bytes,
                 program.exact_memory ? "" : " (an estimate)");
  for (const auto& frame : program.frames) {
    fmt::format_to(to, "frame {} {}: {} bytes", kFrames[static_cast<int>(frame.kind)], frame.name,
                   frame.bytes);
    if (frame.copies > 1) fmt::format_to(to, " x {}", frame.copies);
    if (frame.host) out += " of the host";
    out += shared_by(frame) + '\n';
  }
  for (const auto& binding : program.bindings) {
    fmt::format_to(to, "{} \"{}\" {}\n", kBindings[static_cast<int>(binding.kind)], binding.name,
                   binding.value.defined() ? text.declaration(binding.value) : "unused");
  }
  for (const auto& section : program.sections) {
    fmt::format_to(to, "section {}\n", section.name());
    for (const auto& instruction : section.instructions) {
      fmt::format_to(to, "  {}\n", text.instruction(instruction));
    }
  }
  out += "order";
  for (const auto& run : program.order) {
    fmt::format_to(to, " {}({})", program.sections[run.section].name(), run.microbatch);
    if (run.every > 1) fmt::format_to(to, " every {} steps", run.every);
    if (run.after_writes) fmt::format_to(to, " after writes");
  }
  return out + '\n';
}

std::string summary(const Program& program) {
  std::string out;
  auto to = std::back_inserter(out);
  for (const auto& frame : program.frames) {
    if (frame.bytes == 0) continue;
    const bool named = frame.borrowed || frame.host;
    const std::string kind = named ? frame.name : kFrames[static_cast<int>(frame.kind)];
    fmt::format_to(to, "{}{}: {}{}\n", kind,
                   frame.kind == Frame::Kind::communication ? " over " + frame.name : "",
                   bytes_text(static_cast<double>(frame.bytes * frame.copies)), shared_by(frame));
  }
  for (size_t s = 0; s < program.sections.size(); ++s) {
    const auto& section = program.sections[s];
    int64_t runs = 0, ops = 0, every = 1;
    for (const auto& run : program.order) {
      if (run.section != static_cast<int32_t>(s)) continue;
      ++runs;
      every = run.every;
    }
    struct Count {
      int64_t times = 0, bytes = 0;
    };
    std::map<std::string, Count> collectives;
    for (const auto& instruction : section.instructions) {
      if (instruction.kind == Instruction::Kind::op) ++ops;
      if (instruction.kind != Instruction::Kind::collective) continue;
      auto& count = collectives[instruction.op.substr(instruction.op.find("::") + 2) + " over " +
                                program.streams[instruction.stream].name()];
      ++count.times;
      ValueId first = instruction.outputs.empty() ? ValueId{} : instruction.outputs.front();
      if (!first.defined()) each_operand(instruction, [&](ValueId v) { first = v; });
      if (first.defined()) count.bytes += program.values[first.index].type.bytes();
    }
    const bool refreshes = section.role.kind == SectionKind::refresh;
    const auto seldom = refreshes   ? " after writes"
                        : every > 1 ? fmt::format(" every {} steps", every)
                                    : "";
    fmt::format_to(to, "{} x {}{}: {} ops", section.name(), runs, seldom, ops);
    for (const auto& [name, count] : collectives) {
      fmt::format_to(to, ", {} {} ({})", count.times, name,
                     bytes_text(static_cast<double>(count.bytes)));
    }
    out += '\n';
  }
  return out;
}

}  // namespace perigee::compile
