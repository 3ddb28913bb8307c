// Finds, divides and removes checkpoints.
#include "checkpoint/checkpoint.h"

#define XXH_INLINE_ALL
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <numeric>
#include <tuple>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/log_format.h"
#include "checkpoint/files.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kAside = ".aside-";

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
  return name == "COMPLETE" || name == "index.json" ||
         (name.starts_with("rank-") && (name.ends_with(".safetensors") || name.ends_with(".json")));
}

int64_t bytes_of(const TensorPart& part) {
  return count_of(part.ranges) * static_cast<int64_t>(graph::size_of(part.dtype));
}

}  // namespace

std::string store_of(const std::string& run) { return (fs::path(run) / "checkpoints").string(); }

std::vector<StepFolder> step_folders(const std::string& run) {
  std::vector<StepFolder> found;
  std::error_code error;
  for (fs::directory_iterator it(store_of(run), error), end; !error && it != end;
       it.increment(error)) {
    StepFolder folder;
    if (!parse_step(it->path().filename().string(), folder)) continue;
    std::error_code ignored;
    if (!it->is_directory(ignored)) continue;
    folder.path = it->path().string();
    folder.complete = folder.kind != StepFolder::Kind::partial &&
                      fs::exists(it->path() / "COMPLETE", ignored);
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

std::string checksum_of(std::string_view bytes) {
  const auto digest = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
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

std::string find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    fail("checkpoint", "a run or a checkpoint is a folder, but there is no folder {}", path);
  }
  if (run_of(path) != path || fs::exists(fs::path(path) / "index.json", ignored)) return path;
  const auto newest = newest_checkpoint(path);
  if (newest.empty()) {
    fail("checkpoint",
         "{} must hold a complete checkpoint (checkpoints/step-N with the mark COMPLETE), but it "
         "holds none: start the run again with --overwrite",
         path);
  }
  return newest;
}

std::string run_of(const std::string& path) {
  auto folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  StepFolder unused;
  auto store = folder.parent_path();
  if (!parse_step(folder.filename().string(), unused)) return path;
  if (store.empty()) store = fs::absolute(folder).parent_path();
  if (store.filename() != "checkpoints") return path;
  const auto run = store.parent_path().string();
  return run.empty() ? "." : run;
}

int64_t set_aside_later(const std::string& run, int64_t step,
                        const std::function<void(int64_t)>& before) {
  const auto folders = step_folders(run);
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
    rename_durably(folder->path, (fs::path(store_of(run)) / name).string());
    steps.push_back(folder->step);
  }
  const bool one = steps.size() == 1;
  log::info("checkpoint{} of step{} {}, later than step {}: renamed to step-N{}{} in {}, and kept",
            one ? "" : "s", one ? "" : "s", fmt::join(steps, ", "), step, kAside, number,
            store_of(run));
  return number;
}

void remove_checkpoint(const std::string& folder) {
  std::error_code error;
  fs::remove(fs::path(folder) / "COMPLETE", error);
  std::vector<fs::path> files;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_own_file(it->path().filename().string())) files.push_back(it->path());
  }
  for (const auto& file : files) {
    fs::remove(file, error);
    if (error) log::warn("{} cannot be removed: {}", file.string(), error.message());
  }
  fs::remove(folder, error);  // stays where it holds other files
}

}  // namespace perigee::checkpoint
