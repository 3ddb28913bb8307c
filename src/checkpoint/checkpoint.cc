// Finds, divides and removes checkpoints.
#include "checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <numeric>
#include <tuple>

#include "base/fail.h"
#include "base/log_format.h"
#include "checkpoint/files.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kAside = ".aside-";
constexpr std::string_view kStore = "checkpoints";  // the folder of a run that holds them

// Reads a number that is the whole text.
bool parse_number(std::string_view text, int64_t& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() && number >= 0;
}

// Reads "step-N", "step-N.old", "step-N.partial", "step-N.aside-K".
bool parse_step(std::string_view name, StepFolder& folder) {
  constexpr std::string_view start = "step-";
  if (!name.starts_with(start)) return false;
  name.remove_prefix(start.size());
  const auto read = std::from_chars(name.data(), name.data() + name.size(), folder.step);
  if (read.ec != std::errc() || folder.step < 0) return false;
  const std::string_view rest(read.ptr, name.data() + name.size() - read.ptr);
  if (rest.starts_with(kAside)) {
    folder.kind = StepFolder::Kind::aside;
    return parse_number(rest.substr(kAside.size()), folder.aside);
  }
  folder.kind = rest == ".old"       ? StepFolder::Kind::replaced
                : rest == ".partial" ? StepFolder::Kind::partial
                                     : StepFolder::Kind::published;
  return rest.empty() || folder.kind != StepFolder::Kind::published;
}

// Whether a checkpoint's writer makes files of this name.
bool is_own_file(std::string_view name) {
  if (name.ends_with(".partial")) name.remove_suffix(std::string_view(".partial").size());
  return name == kComplete || name == "index.json" ||
         (name.starts_with("rank-") && (name.ends_with(".safetensors") || name.ends_with(".json")));
}

int64_t bytes_of(const TensorPart& part) {
  return count_of(part.ranges) * static_cast<int64_t>(graph::size_of(part.dtype));
}

}  // namespace

std::string store_of(const std::string& run) { return inside(run, kStore); }

std::vector<StepFolder> step_folders(const std::string& run) {
  return step_folders(*open_target(run), run);
}

std::vector<StepFolder> step_folders(Target& target, const std::string& run) {
  std::vector<StepFolder> found;
  for (const auto& entry : target.list(store_of(run))) {
    StepFolder folder;
    if (!entry.is_folder || !parse_step(entry.name, folder)) continue;
    folder.path = inside(store_of(run), entry.name);
    folder.complete = folder.kind != StepFolder::Kind::partial &&
                      target.size(inside(folder.path, kComplete)).has_value();
    if (!folder.complete && !target.moves_at_once()) folder.kind = StepFolder::Kind::partial;
    found.push_back(std::move(folder));
  }
  std::sort(found.begin(), found.end(), [](const StepFolder& a, const StepFolder& b) {
    return std::tie(a.step, a.kind, a.aside) < std::tie(b.step, b.kind, b.aside);
  });
  return found;
}

int64_t count_of(std::span<const Range> ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{1},
                         [](int64_t n, const Range& range) { return n * range.length; });
}

std::string key_of(const TensorPart& part) {
  bool whole = true;
  std::string text;
  for (size_t d = 0; d < part.ranges.size(); ++d) {
    const auto& [begin, length] = part.ranges[d];
    whole = whole && length == part.shape[d];
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", begin, begin + length);
  }
  return whole ? part.name : fmt::format("{}[{}]", part.name, text);
}

std::vector<Holding> holdings_of(const TensorPart& whole, const mesh::Placements& placements,
                                 const mesh::Mesh& mesh) {
  for (const auto& placement : placements) {
    if (placement.is_partial()) {
      fail("checkpoint", "{} must be replicated or sharded, but its placements are {}", whole.name,
           mesh::to_string(placements));
    }
  }
  std::vector<Holding> holdings;
  std::map<std::string, size_t> known;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const auto rank = mesh.order.empty() ? i : mesh.order[i];
    auto part = whole;
    part.ranges = mesh::local_ranges(whole.shape, placements, mesh, rank);
    if (count_of(part.ranges) == 0) continue;
    const auto [at, is_new] = known.emplace(key_of(part), holdings.size());
    if (is_new) holdings.push_back({std::move(part), {}});
    holdings[at->second].ranks.push_back(rank);
  }
  for (auto& holding : holdings) std::sort(holding.ranks.begin(), holding.ranks.end());
  return holdings;
}

std::vector<int64_t> owners(std::span<const Holding> holdings) {
  std::vector<size_t> order(holdings.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return bytes_of(holdings[a].part) > bytes_of(holdings[b].part);
  });
  // Parts that only one rank holds first: they leave no choice.
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t i) { return holdings[i].ranks.size() == 1; });
  std::map<int64_t, int64_t> load;
  std::vector<int64_t> owner(holdings.size(), -1);
  for (const auto i : order) {
    for (const auto rank : holdings[i].ranks) {
      if (owner[i] < 0 || load[rank] < load[owner[i]]) owner[i] = rank;
    }
    if (owner[i] < 0) fail("checkpoint", "{} must have a holder", holdings[i].part.name);
    load[owner[i]] += bytes_of(holdings[i].part);
  }
  return owner;
}

std::vector<int64_t> bytes_by_owner(std::span<const Holding> holdings, int64_t ranks) {
  std::vector<int64_t> bytes(static_cast<size_t>(ranks));
  const auto owner = owners(holdings);
  for (size_t i = 0; i < holdings.size(); ++i) {
    bytes.at(static_cast<size_t>(owner[i])) += bytes_of(holdings[i].part);
  }
  return bytes;
}

std::string newest_checkpoint(const std::string& run) {
  const StepFolder* best = nullptr;
  const StepFolder* broken = nullptr;
  const auto folders = step_folders(run);
  for (const auto& folder : folders) {
    if (folder.kind == StepFolder::Kind::aside) continue;
    if (folder.complete && (!best || folder.step > best->step)) best = &folder;
    if (!folder.complete) broken = &folder;
  }
  if (best && broken && broken->step > best->step) {
    log::warn("checkpoint {} is incomplete: the run ended while it was written; using {}",
              broken->path, best->path);
  }
  return best ? best->path : "";
}

std::string find_checkpoint(const std::string& given) {
  auto path = given;
  while (is_s3(path) && path.ends_with('/')) path.pop_back();
  const auto target = open_target(path);
  if (target->is_local() && !target->has_folder(path)) {
    fail("checkpoint", "a run or a checkpoint is a folder, but there is no folder {}", path);
  }
  if (run_of(path) != path || target->size(inside(path, "index.json"))) return path;
  const auto newest = newest_checkpoint(path);
  if (newest.empty()) {
    fail("checkpoint",
         "{} must hold a complete checkpoint (checkpoints/step-N with the mark COMPLETE), but it "
         "holds none: give another run or checkpoint, or train this run until its first one",
         path);
  }
  return newest;
}

std::string run_of(const std::string& path) {
  if (is_s3(path)) {  // a URL, which is not normalised
    const auto whole = path.substr(0, std::max<size_t>(path.find_last_not_of('/') + 1, 5));
    const auto name = whole.rfind('/'), store = whole.rfind('/', name - 1);
    StepFolder unused;
    const bool is_stored = store > 5 && parse_step(whole.substr(name + 1), unused) &&
                           whole.substr(store + 1, name - store - 1) == kStore;
    return whole.substr(0, is_stored ? store : whole.size());
  }
  auto folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  StepFolder unused;
  auto store = folder.parent_path();
  if (!parse_step(folder.filename().string(), unused)) return path;
  if (store.empty()) store = fs::absolute(folder).parent_path();
  if (store.filename() != kStore) return path;
  const auto run = store.parent_path().string();
  return run.empty() ? "." : run;
}

int64_t set_aside_later(const std::string& run, int64_t step,
                        const std::function<void(int64_t)>& before) {
  const auto target = open_target(run);
  const auto folders = step_folders(*target, run);
  int64_t number = 1;
  std::vector<const StepFolder*> later;
  for (const auto& folder : folders) {
    number = std::max(number, folder.aside + 1);
    if (!folder.complete || folder.kind == StepFolder::Kind::aside || folder.step <= step) continue;
    // Of two complete ones of a step the published one, which comes first, is the newer.
    if (later.empty() || later.back()->step != folder.step) later.push_back(&folder);
  }
  if (later.empty()) return 0;
  if (before) before(number);
  std::vector<int64_t> steps;
  for (const auto* folder : later) {
    const auto name = fmt::format("step-{}{}{}", folder->step, kAside, number);
    target->move_folder(folder->path, inside(store_of(run), name), kComplete);
    steps.push_back(folder->step);
  }
  const bool one = steps.size() == 1;
  log::info("checkpoint{} of step{} {}, later than step {}: renamed to step-N{}{} in {}, and kept",
            one ? "" : "s", one ? "" : "s", fmt::join(steps, ", "), step, kAside, number,
            store_of(run));
  return number;
}

void remove_checkpoint(const std::string& folder) {
  remove_checkpoint(*open_target(folder), folder);
}

void remove_checkpoint(Target& target, const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : target.list(folder)) {
    if (is_own_file(entry.name)) names.push_back(entry.name);
  }
  // The mark first: an incomplete checkpoint never has it.
  std::stable_partition(names.begin(), names.end(),
                        [](const auto& name) { return name == kComplete; });
  for (const auto& name : names) {
    try {
      target.remove(inside(folder, name));
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
  }
  target.remove_folder(folder);
}

void remove_checkpoints(const std::string& run) {
  const auto target = open_target(run);
  for (const auto& step : step_folders(*target, run)) remove_checkpoint(*target, step.path);
  target->remove_folder(store_of(run));
}

}  // namespace perigee::checkpoint
