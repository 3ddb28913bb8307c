#include "search/space/submeshes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/fail.h"

namespace perigee::search {
namespace {

using Json = nlohmann::json;

// Returns the submeshes that a stage of so many ranks may have.
std::vector<Submesh> submeshes_of(int64_t ranks, const RowOptions& options) {
  std::vector<Submesh> found;
  if (!has_size(options.sizes, ranks)) return found;
  for (int64_t tensor = 1; tensor <= ranks; ++tensor) {
    const auto data = ranks / tensor;
    if (ranks % tensor != 0 || options.tensor.value_or(tensor) != tensor) continue;
    if (!options.tensor && tensor > options.node) continue;
    if (options.data.value_or(data) != data || options.batch % data != 0) continue;
    found.push_back({tensor, data});
  }
  return found;
}

class AllRows {
 public:
  explicit AllRows(const RowOptions& options) : options_(options) {
    for (int64_t ranks = 0; ranks < options.ranks; ++ranks) {
      ways_.push_back(submeshes_of(ranks, options));
    }
  }

  std::vector<std::vector<Submesh>> run() {
    extend(options_.ranks);
    return std::move(rows_);
  }

 private:
  void extend(int64_t left) {
    if (left == 0) {
      const auto stages = std::ssize(row_);
      if (options_.pipe.value_or(stages) != stages || are_identical(row_)) return;
      if (is_row(row_, options_)) rows_.push_back(row_);
      return;
    }
    const auto most = options_.pipe.value_or(options_.most_stages);
    if (std::ssize(row_) == std::min(most, options_.most_stages)) return;
    for (auto ranks = std::min(left, options_.ranks - 1); ranks > 0; --ranks) {
      for (const auto& submesh : ways_[static_cast<size_t>(ranks)]) {
        row_.push_back(submesh);
        extend(left - ranks);
        row_.pop_back();
      }
    }
  }

  const RowOptions& options_;
  std::vector<std::vector<Submesh>> ways_;  // by ranks
  std::vector<Submesh> row_;
  std::vector<std::vector<Submesh>> rows_;
};

// Runs of identical stages with so many ranks together.
std::vector<std::vector<Submesh>> runs_of(int64_t ranks, const RowOptions& options) {
  std::vector<std::vector<Submesh>> runs;
  for (int64_t size = 1; size <= ranks; ++size) {
    if (ranks % size != 0 || ranks / size >= options.most_stages) continue;
    for (const auto& submesh : submeshes_of(size, options)) {
      runs.emplace_back(static_cast<size_t>(ranks / size), submesh);
    }
  }
  return runs;
}

std::vector<std::vector<Submesh>> two_runs(const RowOptions& options) {
  std::vector<std::vector<Submesh>> rows;
  for (int64_t ranks = 1; ranks < options.ranks; ++ranks) {
    const auto later_runs = runs_of(options.ranks - ranks, options);
    for (const auto& first : runs_of(ranks, options)) {
      for (const auto& second : later_runs) {
        const auto stages = std::ssize(first) + std::ssize(second);
        if (stages > options.most_stages || options.pipe.value_or(stages) != stages) continue;
        auto row = first;
        row.insert(row.end(), second.begin(), second.end());
        if (!are_identical(row) && is_row(row, options)) rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

std::string text_of(const Submesh& submesh) {
  const auto& [tensor, data] = submesh;
  if (submesh.ranks() == 1) return "1 rank";
  if (tensor == 1) return fmt::format("data {}", data);
  return fmt::format("tensor {}{}", tensor, data > 1 ? fmt::format(" data {}", data) : "");
}

}  // namespace

std::vector<std::string> stage_sizes() { return {"all", "power_of_two", "small_power_of_two"}; }

bool has_size(const std::string& sizes, int64_t ranks) {
  if (sizes == "power_of_two") return (ranks & (ranks - 1)) == 0;
  if (sizes == "small_power_of_two") return ranks == 1 || ranks == 2 || ranks == 4;
  return true;
}

bool are_identical(const std::vector<Submesh>& submeshes) {
  return std::all_of(submeshes.begin(), submeshes.end(),
                     [&](const Submesh& one) { return one == submeshes.front(); });
}

std::vector<Submesh> parse_submeshes(const Json& list) {
  if (!list.is_array() || list.empty()) {
    fail("search",
         "submeshes are false, all, power_of_two, small_power_of_two or a list with the axes of "
         "each stage, but got {}",
         list.dump());
  }
  std::vector<Submesh> submeshes;
  for (const auto& axes : list) {
    auto& submesh = submeshes.emplace_back();
    const bool axes_fit = axes.is_array() || (axes.is_object() && axes.empty());
    if (!axes_fit) {
      fail("search", "a submesh is a list of {{name, size}}, but got {}", axes.dump());
    }
    for (const auto& axis : axes) {
      const bool fits = axis.is_array() && axis.size() == 2 && axis[0].is_string() &&
                        axis[1].is_number_integer() && axis[1].get<int64_t>() >= 1;
      const auto name = fits ? axis[0].get<std::string>() : "";
      if (name != "tensor" && name != "data") {
        fail("search",
             "stages of unequal submeshes have the axes tensor and data, {{\"tensor\", 2}}, but "
             "got {}",
             axis.dump());
      }
      (name == "tensor" ? submesh.tensor : submesh.data) = axis[1].get<int64_t>();
    }
  }
  return submeshes;
}

std::string to_string(const std::vector<Submesh>& submeshes) {
  std::string text;
  for (size_t first = 0; first < submeshes.size();) {
    size_t end = first;
    while (end < submeshes.size() && submeshes[end] == submeshes[first]) ++end;
    if (first > 0) text += " | ";
    if (end - first > 1) text += fmt::format("{} x ", end - first);
    text += text_of(submeshes[first]);
    first = end;
  }
  return text;
}

bool is_row(const std::vector<Submesh>& submeshes, const RowOptions& options) {
  int64_t first = 0, samples = 1;
  for (const auto& submesh : submeshes) {
    const auto tensor = submesh.tensor;
    for (auto rank = first; tensor <= options.node && rank < first + submesh.ranks();
         rank += tensor) {
      if (rank / options.node != (rank + tensor - 1) / options.node) return false;
    }
    samples = std::lcm(samples, submesh.data);
    first += submesh.ranks();
  }
  return options.batch % samples == 0;
}

std::vector<std::vector<Submesh>> rows_of_submeshes(const RowOptions& options) {
  return options.ranks <= kAllRows ? AllRows(options).run() : two_runs(options);
}

}  // namespace perigee::search
