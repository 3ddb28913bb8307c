#include "search/model/stage/stage_sum.h"

#include <algorithm>

#include "schedule/schedule.h"

namespace perigee::search {
namespace {

// Gradients that share a bucket are reduced when the last of them is there. `layers` stand in the
// order of the forward pass.
void end_with_bucket(std::vector<Passing>& layers, double buckets) {
  double reduce = 0;
  for (const auto& layer : layers) reduce += layer.times * layer.reduce;
  const double last = reduce / std::max(1.0, buckets);
  auto& front = layers.front();
  if (last <= front.last_reduction) return;
  for (auto& layer : layers) layer.reduce *= 1 - last / reduce;
  front.last_reduction = last;
}

double gathered_bytes(const Layer& layer) {
  double bytes = 0;
  for (const auto& flat : layer.flats) bytes += flat.gathered;
  return bytes;
}

}  // namespace

void StageSum::add(const Layer& layer, const LayerExchange& exchange, const LayerPasses& passes,
                   int times) {
  const auto& choice = input_.choice;
  forward_.push_back({.compute = passes.forward,
                      .communication = layer.forward_communication,
                      .gather = exchange.gather_forward,
                      .times = times});
  backward_.push_back({.compute = passes.backward + exchange.early,
                       .communication = layer.communication - layer.forward_communication,
                       .gather = exchange.gather_backward,
                       .reduce = exchange.reduce,
                       .last_reduction = exchange.last_reduction,
                       .tail = layer.tail,
                       .times = times,
                       .buckets = choice.zero < 3 ? &layer.buckets : nullptr});
  stage_.forward += times * passes.forward;
  stage_.backward += times * passes.backward;
  stage_.weight_gradients += times * layer.gradient;
  stage_.communication += times * layer.communication;
  stage_.forward_communication += times * layer.forward_communication;
  saved_ += times * StagePrices::saved_bytes(choice, layer, input_.layers);
  operands_ += times * layer.operands;
  weights_ += times * layer.weights;
  gradients_ += times * layer.gradients;
  states_ += times * layer.states;
  transient_ += times * layer.transient;
  for (const auto& flat : layer.flats) {
    gathered_ += times * flat.gathered;
    largest_gradient_ = std::max(largest_gradient_, flat.largest);
    if (flat.pieces > 0) {
      largest_reduction_ = std::max(largest_reduction_, flat.gradients / flat.pieces);
    }
  }
  step_ += times * layer.step;
  norm_ += times * layer.norm;
  gather_ += times * exchange.gather;
  buckets_ += times * exchange.buckets;
}

StageCosts StageSum::costs(const LayerPasses& epilogue) {
  const auto& choice = input_.choice;
  const auto& exchanges = input_.exchanges;
  const double share = choice.zero > 0 ? 1 / static_cast<double>(choice.parts()) : 1;
  stage_.optimizer = share * (step_ - norm_);
  stage_.norm = share * norm_;
  stage_.norm_all_reduce = exchanges.norm_all_reduce;
  if (!exchanges.none()) add_exchange(epilogue);
  if (input_.part.has_prologue || input_.part.has_epilogue) {
    stage_.gradient_exchange += exchanges.tied;
  }
  set_bytes();
  return stage_;
}

void StageSum::add_exchange(const LayerPasses& epilogue) {
  const auto& choice = input_.choice;
  const auto& layers = input_.layers;
  const auto& exchanges = input_.exchanges;
  if (choice.zero < 3) end_with_bucket(backward_, buckets_);
  std::reverse(backward_.begin(), backward_.end());
  if (layers.tied && input_.part.has_prologue && input_.part.has_epilogue && choice.zero == 3) {
    // The last product reads the prologue's unit, which is there from then on; the epilogue's unit,
    // which has few parameters of its own, is gathered after it.
    const auto& product = layers.epilogue;
    backward_.front().compute = 0;
    backward_.front().communication = 0;
    backward_.back().gather = 0;
    backward_.insert(backward_.begin(),
                     {.compute = epilogue.backward,
                      .communication = product.communication - product.forward_communication,
                      .gather = exchanges.prologue.gather_backward});
  }
  const double backward_seconds = seconds_of_pass(backward_, exchanges.contention) +
                                  (choice.zero < 3 ? exchanges.smallest_reduction : 0);
  if (choice.zero >= 2) {
    const double forward_seconds = seconds_of_pass(forward_, exchanges.contention);
    stage_.exchange = forward_seconds + backward_seconds - stage_.forward - stage_.backward;
    if (choice.zero == 2) stage_.tail = backward_seconds - stage_.backward;
    stage_.forward = forward_seconds;
    stage_.backward = backward_seconds;
  } else {
    // The last microbatch's backward pass hides a part of the exchange.
    stage_.gradient_exchange = backward_seconds - stage_.backward;
  }
  // New weights are gathered while the next bucket is stepped.
  stage_.optimizer = exchanges.contention == Contention::cores
                         ? gather_ + stage_.optimizer
                         : std::max(gather_, stage_.optimizer + gather_ / std::max(1.0, buckets_));
}

void StageSum::set_bytes() {
  const auto& choice = input_.choice;
  const auto& layers = input_.layers;
  const auto parts = static_cast<double>(choice.parts());
  const double states = choice.zero >= 1 ? states_ / parts : states_;
  // Copies to the host and from it overlap with each other and with the optimizer.
  if (choice.offload) {
    stage_.optimizer = std::max(stage_.optimizer, states / input_.device.host);
  }
  // Sharded masters are stored beside unsharded low-precision weights.
  const double weights = choice.zero >= 3 || choice.one_copy ? weights_ / parts
                         : choice.zero > 0 && layers.masters ? gathered_ + weights_ / parts
                                                             : weights_;
  stage_.resident_bytes = weights + (choice.zero >= 2 ? gradients_ / parts : gradients_) +
                          (choice.zero == 1 ? gradients_ / parts : 0) +
                          (choice.offload ? 0 : states);
  stage_.optimizer_bytes = stage_.resident_bytes +
                           (choice.zero >= 1 ? transient_ / parts : transient_);
  stage_.working_bytes =
      layers.working +
      (choice.zero >= 3 ? 2 * gathered_bytes(layers.block) + layers.block.gradients +
                              gathered_bytes(layers.prologue)
                        : 0) +
      (choice.zero == 2 ? std::min(gradients_, 2 * largest_reduction_) + gradients_ / parts : 0);
  // A later microbatch's gradient is allocated beside the sum that it is added to.
  if (choice.microbatches > 1) stage_.working_bytes += largest_gradient_;
  // Receive buffers are prefetched (compile::share_receive_buffers).
  if (choice.pipe > 1) stage_.prefetched_bytes = 2 * layers.crossing;
  // The input from the previous stage is saved; the stage's own output stays after it is sent.
  const bool first = input_.part.has_prologue;
  stage_.in_flight_bytes = saved_ + (first ? 0 : layers.entering);
  if (choice.pipe > 1 && splits_backward(choice.schedule)) {
    // No stage waits for the first stage's input gradients: its whole backward pass is deferred,
    // and reads the received gradient.
    if (first) stage_.in_flight_bytes += layers.crossing;
    stage_.in_flight_bytes = std::max(stage_.in_flight_bytes, operands_);
    // A unit with sharded gradients stays unsharded until all of them are computed: those of norms
    // are computed with input gradients, those of weights later. On the first stage all are
    // computed at once.
    if (choice.zero >= 2 && !first) stage_.in_flight_bytes += gradients_;
  }
}

}  // namespace perigee::search
