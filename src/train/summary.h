// What a run says of itself when it ends: measured beside predicted.
#pragma once

#include <optional>

#include "plan/plan.h"
#include "train/forecast.h"
#include "train/loop.h"
#include "train/metrics.h"

namespace perigee::train {

// Returns the summary of a run that began with step `first`; its mfu is left to the caller.
Summary summarise(const LoopResult& result, int64_t first, const plan::Plan& plan,
                  const std::optional<Forecast>& forecast);

// Tells the log; memory as the most of a rank.
void tell(const Summary& summary, bool stopped);

}  // namespace perigee::train
