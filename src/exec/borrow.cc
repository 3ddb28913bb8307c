#include "exec/borrow.h"

#include <algorithm>

#include "base/fail.h"
#include "exec/executor.h"
#include "exec/prepared.h"

namespace perigee::exec {

std::map<int32_t, std::byte*> borrowed_addresses(
    const compile::Program& program, const Executor* lender,
    const std::function<at::Tensor(compile::ValueId)>& own) {
  using compile::Binding;
  std::map<int32_t, std::byte*> borrowed;
  for (const auto& binding : program.bindings) {
    if (binding.kind != Binding::Kind::parameter && binding.kind != Binding::Kind::buffer &&
        binding.kind != Binding::Kind::state) {
      continue;
    }
    const auto& value = program.values[binding.value.index];
    if (value.place.frame < 0 || !program.frames[value.place.frame].borrowed) continue;
    if (!lender) {
      fail("exec", "a program that borrows its weights needs an executor that has \"{}\"",
           binding.name);
    }
    const auto& known = lender->program().bindings;
    const auto same = std::find_if(known.begin(), known.end(), [&](const Binding& other) {
      return other.kind == binding.kind && other.name == binding.name &&
             other.ranges == binding.ranges;
    });
    if (same == known.end()) {
      fail("exec", "\"{}\" must be lent in the same parts, but the lender has others",
           binding.name);
    }
    const auto lent = lender->tensor(*same);
    const auto wanted = own(binding.value);
    if (!same_layout(lent, wanted)) {
      fail("exec", "\"{}\" must be lent as {}, but is {}", binding.name, layout_of(wanted),
           layout_of(lent));
    }
    const auto root = value.view_of.defined() ? value.view_of : binding.value;
    auto* address = static_cast<std::byte*>(lent.data_ptr()) -
                    (value.place.offset - program.values[root.index].place.offset);
    const auto [at, added] = borrowed.emplace(root.index, address);
    if (!added && at->second != address) {
      fail("exec",
           "\"{}\" must be lent at its offset from the other parameters of its buffer, but has "
           "another address",
           binding.name);
    }
  }
  return borrowed;
}

}  // namespace perigee::exec
