// Cases for the rules of a mixture of experts: tokens to their experts and back, with uneven
// routing, experts without tokens, and too few places.
#include "tests/parity/rules/support_parts.h"

namespace perigee::parity {
namespace {

using graph::DType;
using graph::ValueId;

struct Mixture {
  int64_t groups, tokens, choices, experts, places, width;
  ValueId slot, counts;

  explicit Mixture(Case& c)
      : groups(c.any(1, 4)),
        tokens(c.any(1, 8)),
        choices(c.any(1, 2)),
        experts(c.any(1, 6)),
        places(c.any(1, 4)),
        width(c.size()) {
    // Often all tokens choose the same few experts.
    const auto chosen = c.coin(0.3) ? std::max<int64_t>(experts / 2, 1) : experts;
    const auto expert = c.integers({groups, tokens, choices}, 0, chosen - 1);
    const auto made = c.typed(
        "perigee::expert_slots",
        {{"expert", expert}, {"experts", experts}, {"places", places}, {"dropless", false}},
        {{DType::int64, {groups, tokens, choices}}, {DType::int64, {groups, experts}}});
    slot = made[0];
    counts = made[1];
  }

  Shape rows() const { return {groups, tokens, choices, width}; }
  Shape queue(int64_t columns) const { return {experts, groups, places, columns}; }
};

}  // namespace

void add_expert_cases(Cases& cases) {
  cases["perigee::dispatch"] = [](Case& c) {
    const Mixture m(c);
    const auto queue = c.typed("perigee::dispatch",
                               {{"source", c.real(m.rows())},
                                {"slot", m.slot},
                                {"experts", m.experts},
                                {"places", m.places}},
                               {{DType::float64, m.queue(m.width)}})[0];
    const auto hidden = c.size();
    const auto product = c.typed(
        "perigee::grouped_mm",
        {{"self", queue}, {"mat2", c.real({m.experts, m.width, hidden})}, {"counts", m.counts}},
        {{DType::float64, m.queue(hidden)}})[0];
    auto back = m.rows();
    back.back() = hidden;
    c.typed("perigee::combine", {{"queue", product}, {"slot", m.slot}}, {{DType::float64, back}});
  };
  cases["perigee::grouped_outer"] = [](Case& c) {
    const Mixture m(c);
    const auto hidden = c.size();
    c.typed("perigee::grouped_outer",
            {{"self", c.real(m.queue(m.width))},
             {"grad", c.real(m.queue(hidden))},
             {"counts", m.counts}},
            {{DType::float64, {m.experts, m.width, hidden}}});
  };
}

}  // namespace perigee::parity
