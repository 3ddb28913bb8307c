#include "train/output/best_step.h"

#include <nlohmann/json.hpp>

namespace perigee::train {
namespace {

constexpr const char* kKey = "validation";

nlohmann::json own_state(const std::string& state) {
  const auto json = nlohmann::json::parse(state, nullptr, false);
  const auto found = json.is_object() ? json.find(kKey) : json.end();
  return json.is_object() && found != json.end() ? *found : nlohmann::json();
}

}  // namespace

BestStep::BestStep(const job::Job& job, const std::string& state)
    : kept_(job.train.keep_best || job.train.early_stop_patience > 0),
      patience_(job.train.early_stop_patience),
      min_delta_(job.train.early_stop_min_delta) {
  const auto own = own_state(state);
  if (!own.is_object()) return;
  step_ = own.value("best_step", int64_t{0});
  loss_ = own.value("best_loss", loss_);
  reference_ = own.value("reference_loss", reference_);
  in_a_row_ = own.value("not_better", int64_t{0});
}

bool BestStep::add(int64_t step, double loss) {
  const bool enough = loss < reference_ - min_delta_;
  in_a_row_ = enough ? 0 : in_a_row_ + 1;
  if (enough) reference_ = loss;
  if (!(loss < loss_)) return false;
  loss_ = loss;
  step_ = step;
  return true;
}

std::string BestStep::with_state(const std::string& state) const {
  if (step_ == 0 || !kept_) return state;
  auto json = nlohmann::json::parse(state);
  json[kKey] = {{"best_step", step_},
                {"best_loss", loss_},
                {"reference_loss", reference_},
                {"not_better", in_a_row_}};
  return json.dump();
}

int64_t best_step_of(const std::string& state) {
  const auto own = own_state(state);
  return own.is_object() ? own.value("best_step", int64_t{0}) : 0;
}

}  // namespace perigee::train
