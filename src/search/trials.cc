#include "search/trials.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>

#include "base/fail.h"
#include "base/infinity.h"
#include "search/space/choice.h"
#include "solve/bayesian/bayesian.h"

namespace perigee::search {
namespace {

using nlohmann::json;

constexpr int64_t kMostCombinations = int64_t{1} << 62;
const std::vector<std::string> kAlgorithms = {"bo", "combination", "random"};
const std::vector<std::string> kNames = {"algorithm", "trials", "patience", "time_limit",
                                         "measure",   "seed",   "variables"};

// Returns the next combination.
class Order {
 public:
  virtual ~Order() = default;
  virtual std::optional<solve::Point> next() = 0;
  virtual void tell(const solve::Point&, double) {}
};

class All : public Order {
 public:
  explicit All(std::vector<int> options) : options_(std::move(options)), point_(options_.size()) {}
  std::optional<solve::Point> next() override {
    if (done_) return std::nullopt;
    const auto now = point_;
    size_t c = 0;
    while (c < point_.size() && ++point_[c] == options_[c]) point_[c++] = 0;
    done_ = c == point_.size();
    return now;
  }

 private:
  std::vector<int> options_;
  solve::Point point_;
  bool done_ = false;
};

// Shuffles no more of the combinations than are asked for.
class Shuffled : public Order {
 public:
  Shuffled(std::vector<int> options, uint64_t left, uint64_t seed)
      : options_(std::move(options)), random_(seed), left_(left) {}
  std::optional<solve::Point> next() override {
    if (left_ == 0) return std::nullopt;
    const auto place = random_() % left_;
    auto number = at(place);
    moved_[place] = at(--left_);
    solve::Point point;
    for (const int count : options_) {
      point.push_back(static_cast<int>(number % static_cast<uint64_t>(count)));
      number /= static_cast<uint64_t>(count);
    }
    return point;
  }

 private:
  // Returns the combination at an index among the remaining ones.
  uint64_t at(uint64_t place) const {
    const auto found = moved_.find(place);
    return found == moved_.end() ? place : found->second;
  }

  std::vector<int> options_;
  std::mt19937_64 random_;
  uint64_t left_;
  std::unordered_map<uint64_t, uint64_t> moved_;  // combinations moved to an index
};

class ByBelief : public Order {
 public:
  ByBelief(std::vector<int> options, uint64_t seed) : bayesian_(std::move(options), seed) {}
  std::optional<solve::Point> next() override { return bayesian_.ask(); }
  void tell(const solve::Point& point, double value) override { bayesian_.tell(point, value); }

 private:
  solve::Bayesian bayesian_;
};

std::unique_ptr<Order> order_of(const TrialOptions& options, std::vector<int> counts,
                                int64_t combinations) {
  if (options.algorithm == "combination") return std::make_unique<All>(std::move(counts));
  if (options.algorithm == "random")
    return std::make_unique<Shuffled>(std::move(counts), combinations, options.seed);
  if (options.algorithm == "bo") return std::make_unique<ByBelief>(std::move(counts), options.seed);
  fail("search", "algorithm must be {}, but got \"{}\"{}", fmt::join(kAlgorithms, ", "),
       options.algorithm, did_you_mean(options.algorithm, kAlgorithms));
}

// Adds the option's pins; methods add up. Returns false where the option contradicts a pin.
bool merge(json& pins, const json& option) {
  for (const auto& [key, value] : option.items()) {
    if (key == "methods") {
      auto& methods = pins["methods"];
      if (!methods.is_array()) methods = json::array();
      for (const auto& method : value) methods.push_back(method);
    } else if (!pins.contains(key)) {
      pins[key] = value;
    } else if (pins[key] != value) {
      return false;
    }
  }
  return true;
}

}  // namespace

Trials run_trials(const json& common, const Variables& variables, const TrialOptions& options,
                  const Attempt& attempt, const std::function<double()>& clock) {
  std::vector<int> counts;
  Trials trials;
  trials.combinations = 1;
  for (const auto& variable : variables) {
    counts.push_back(static_cast<int>(variable.size()));
    if (variable.empty()) fail("search", "a variable has at least one option, but one has none");
    const bool fits = std::ranges::any_of(variable, [&](const json& option) {
      auto pins = common.is_object() ? common : json::object();
      return merge(pins, option);
    });
    if (!fits) {
      fail("search", "a variable must have an option that agrees with the pins {}, but has {}",
           common.dump(), json(variable).dump());
    }
    if (trials.combinations > kMostCombinations / counts.back()) {
      fail("search", "variables must have at most 2^62 combinations, but these have more");
    }
    trials.combinations *= counts.back();
  }
  const auto order = order_of(options, counts, trials.combinations);
  const double begin = clock();
  const auto old = [&] {  // how many trials ago the best was found
    return trials.best < 0 ? 0 : std::ssize(trials.list) - 1 - trials.best;
  };
  bool contradicts = false;  // a combination that was drawn
  while (true) {
    const auto tried = std::ssize(trials.list);
    const double left = options.time_limit > 0 ? options.time_limit - (clock() - begin) : kInfinity;
    if (left <= 0 && (tried > 0 || contradicts)) {
      trials.ended = "time";
      break;
    }
    if (options.algorithm != "combination" && tried >= options.trials) {
      trials.ended = "trials";
      break;
    }
    if (options.algorithm == "bo" && options.patience > 0 && old() > options.patience) {
      trials.ended = "patience";
      break;
    }
    const auto point = order->next();
    if (!point) {
      trials.ended = "all";
      break;
    }
    Trial trial;
    trial.options = *point;
    trial.pins = common.is_object() ? common : json::object();
    bool legal = true;
    for (size_t v = 0; v < variables.size() && legal; ++v) {
      legal = merge(trial.pins, variables[v][static_cast<size_t>((*point)[v])]);
    }
    if (!legal) {
      contradicts = true;
      order->tell(*point, kInfinity);
      continue;
    }
    try {
      attempt(trial, left);
    } catch (const Error& error) {
      trial.refused = error.what();
      trial.seconds = kInfinity;
    }
    order->tell(*point, trial.seconds);
    const bool better = trial.refused.empty() &&
                        (trials.best < 0 ||
                         trial.seconds < trials.list[static_cast<size_t>(trials.best)].seconds);
    if (better) trials.best = static_cast<int>(tried);
    trials.list.push_back(std::move(trial));
  }
  return trials;
}

TrialOptions parse_trials(const json& table, Variables& variables) {
  TrialOptions options;
  const auto count = [](const json& value, const std::string& name, int64_t least) {
    if (value.is_number_integer() && value.get<int64_t>() >= least) return value.get<int64_t>();
    fail("search", "{} must be a whole number of at least {}, but got {}", name, least,
         value.dump());
  };
  for (const auto& [key, value] : table.items()) {
    if (key == "algorithm" && value.is_string()) {
      options.algorithm = value;
    } else if (key == "trials") {
      options.trials = count(value, key, 1);
    } else if (key == "patience") {
      options.patience = count(value, key, 0);
    } else if (key == "seed") {
      options.seed = static_cast<uint64_t>(count(value, key, 0));
    } else if (key == "time_limit" && value.is_number() && value.get<double>() > 0) {
      options.time_limit = value;
    } else if (key == "measure" && value.is_number() && value.get<double>() >= 0) {
      options.measure = value;
    } else if (key == "variables" && value.is_array()) {
      for (const auto& variable : value) {
        if (!variable.is_array()) {
          fail("search", "a variable is a list of options, but got {}", variable.dump());
        }
        auto& list = variables.emplace_back();
        for (const auto& option : variable) {
          // An empty table is an empty list in Lua.
          if (!option.is_object() && !option.empty()) {
            fail("search", "an option is a table of pins, but got {}", option.dump());
          }
          list.push_back(option.is_object() ? option : json::object());
          parse_pins(list.back());  // an unknown pin is an error before any trial
        }
      }
    } else {
      fail("search",
           "the options of a search by trials are {} (algorithm is a name, time_limit and measure "
           "seconds, time_limit above "
           "0, variables a list), but got {} = {}{}",
           fmt::join(kNames, ", "), key, value.dump(), did_you_mean(key, kNames));
    }
  }
  return options;
}

}  // namespace perigee::search
