// Adds up the layers of a part of a pipeline to the costs of a stage.
#pragma once

#include <vector>

#include "cost/cluster.h"
#include "search/layers/exchange.h"
#include "search/layers/layers.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/stage_costs.h"
#include "search/model/stage/stage_prices.h"

namespace perigee::search {

class StageSum {
 public:
  // The part whose layers are added. Keeps all by reference.
  struct Input {
    const Choice& choice;  // of the stage
    const Layers& layers;
    const Exchanges& exchanges;
    const PartBlocks& part;
    const cost::DeviceSpec& device;
  };
  explicit StageSum(const Input& input) : input_(input) {}

  // Adds `times` identical layers, in the order of the forward pass. `passes`: of one of them.
  void add(const Layer& layer, const LayerExchange& exchange, const LayerPasses& passes, int times);

  // Returns the costs of the added layers. `epilogue`: the passes of Layers::epilogue.
  StageCosts costs(const LayerPasses& epilogue);

 private:
  void add_exchange(const LayerPasses& epilogue);
  void set_bytes();

  Input input_;
  StageCosts stage_;
  std::vector<Passing> forward_, backward_;  // in the order of the forward pass
  // Sums over the layers, as in Layer and LayerExchange.
  double buckets_ = 0, weights_ = 0, gathered_ = 0, gradients_ = 0, states_ = 0, transient_ = 0;
  double step_ = 0, norm_ = 0, gather_ = 0, saved_ = 0, operands_ = 0;
  double largest_gradient_ = 0;   // bytes of one parameter's
  double largest_reduction_ = 0;  // bytes
};

}  // namespace perigee::search
