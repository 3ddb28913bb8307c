// The summary of a run: measured beside predicted.
#pragma once

#include <optional>

#include "plan/plan.h"
#include "train/output/metrics.h"
#include "train/plan/step_prediction.h"
#include "train/run/loop.h"

namespace perigee::train {

// Returns the summary of a run that began with step `first`; its mfu is left to the caller.
Summary summarise(const LoopResult& result, int64_t first, const plan::Plan& plan,
                  const std::optional<StepPrediction>& prediction);

// Writes the summary to the log, with the largest memory of any rank.
void log_summary(const Summary& summary, bool stopped);

}  // namespace perigee::train
