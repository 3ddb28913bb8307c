// The parts of an archive of torch.export (capture/exported), which are written to a whole archive:
// the program, the lists of weights and of constants, and the bytes of one tensor, between bytes
// 0x1c (the separator of files).
#include <caffe2/serialize/inline_container.h>

#include <variant>

#include "capture/exported/archive.h"
#include "capture/exported/reader.h"
#include "tests/fuzz/target.h"

using namespace perigee;
using exported::Slot;

namespace {

// Returns the input up to the next separator, and removes it from `rest`.
std::string_view part(std::string_view& rest) {
  const auto end = rest.find('\x1c');
  const auto text = rest.substr(0, end);
  rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  return text;
}

}  // namespace

PERIGEE_FUZZ_TARGET(exported) {
  const auto path = fuzz::scratch_folder() + "/parts.pt2";
  {
    caffe2::serialize::PyTorchStreamWriter writer(path);
    auto rest = input;
    for (const auto* name : {"models/m.json", "data/weights/m_weights_config.json",
                             "data/constants/m_constants_config.json"}) {
      const auto text = part(rest);
      writer.writeRecord(name, text.data(), text.size());
    }
    for (const auto* name : {"data/weights/w", "data/constants/c"}) {
      writer.writeRecord(name, rest.data(), rest.size());
    }
    writer.writeEndOfFile();
  }
  const auto program = exported::read_program(exported::read_archive(path));
  const auto check = [&](const Slot& slot) {
    fuzz::require(slot.index < program.slots, "a slot beyond the program's");
  };
  for (const auto& value : program.inputs) {
    check(value.slot);
    fuzz::require(value.slot.index >= 0, "an input without a slot");
  }
  for (const auto& call : program.calls) {
    fuzz::require(call.op.has_value() != (call.function != nullptr), "a call of nothing");
    for (const auto& argument : call.arguments) {
      for (const auto& item : argument.items) {
        if (const auto* slot = std::get_if<Slot>(&item)) check(*slot);
      }
    }
    for (const auto& slot : call.outputs) check(slot);
  }
  for (const auto& output : program.results) check(output.slot);
  for (const auto& output : program.buffers) check(output.slot);
}
