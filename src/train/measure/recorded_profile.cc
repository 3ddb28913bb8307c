#include "train/measure/recorded_profile.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/fail.h"
#include "base/log_format.h"
#include "exec/cuda.h"
#include "train/measure/profile_path.h"
#include "train/ranks/device.h"

namespace perigee::train {

profile::TimeDatabase times_of(profile::Database& database, const exec::Device& device,
                               const job::Job& job, int64_t ranks) {
  const auto threads = static_cast<int>(job.cluster.threads);
  const bool cpu = device.place().is_cpu();
  return {database, profile::device_kind(device, threads), cpu ? ranks : 1,
          cpu && job.cluster.communicator == "gloo" ? "gloo" : ""};
}

namespace {

// Returns a device kind without its number of threads: "cpu AVX512 torch=2.11.0 perigee=1/2".
std::string without_threads(const std::string& kind) {
  const auto begin = kind.find(" threads=");
  if (begin == kind.npos) return kind;
  const auto end = kind.find(' ', begin + 1);
  return kind.substr(0, begin) + (end == kind.npos ? "" : kind.substr(end));
}

std::string kind_of(const exec::Device& device, const job::Job& job) {
  return profile::device_kind(device, static_cast<int>(job.cluster.threads));
}

}  // namespace

void check_profile(const job::Job& job) {
  const bool named = !job.cluster.profile.empty();
  const auto path = profile_of(job);
  // Don't create a database just to read it.
  std::error_code unreadable;
  if (!std::filesystem::exists(path, unreadable) || (!job.cluster.file.empty() && !named)) return;
  profile::Database database(path);
  const auto others = profile::measured_devices(database);
  if (others.empty()) return;
  if (!job.cluster.file.empty()) {
    log::warn(
        "times are estimated for {}, which cluster.file describes: cluster.profile = \"{}\" has "
        "times of {} and applies only to plans for that machine, without cluster.file and "
        "--cluster",
        job.cluster.file, path, fmt::join(others, ", "));
    return;
  }
  std::string own;
  try {
    own = kind_of(*open_device(job), job);
  } catch (const Error& error) {
    if (named) {
      log::warn("times are estimates, and those in {} of {} are not used: {}", path,
                fmt::join(others, ", "), error.what());
    }
    return;
  }
  if (others.contains(own)) return;
  if (!named) {
    log::info(
        "times are estimates: the profile {} has those of {}, but none of this job's device, {}; "
        "`perigee profile JOB` measures it",
        path, fmt::join(others, ", "), own);
    return;
  }
  fail("profile",
       "cluster.profile = \"{}\" must have times of this job's device, {}, but has those of {} "
       "alone: measure this one into it by `perigee profile JOB`, or leave the key out and have "
       "times estimated",
       path, own, fmt::join(others, ", "));
}

void check_import(const std::string& json, const std::string& file) {
  const auto given = profile::devices_of(json, file);
  if (given.empty()) return;
  std::vector<std::string> here;
  for (const std::string device : {"cpu", "cuda"}) {
    job::Job job;
    job.cluster.device = device;
    if (device == "cuda" && !exec::gpu_driver_present()) continue;
    try {
      here.push_back(without_threads(kind_of(*open_device(job), job)));
    } catch (const Error& error) {
      log::debug("no device {}: {}", device, error.what());
      continue;
    }
    const bool usable = std::ranges::any_of(
        given, [&](const auto& kind) { return without_threads(kind) == here.back(); });
    if (usable) return;
  }
  fail(
      "profile",
      "{} must have entries of a device of this machine ({}), but has those of {} alone: import it "
      "on a machine with that device and these versions, or measure this one by `perigee profile "
      "JOB`",
      file, fmt::join(here, "; "), fmt::join(given, "; "));
}

RecordedProfile::RecordedProfile(const job::Job& job, int64_t ranks) {
  if (!job.cluster.file.empty()) return;
  std::shared_ptr<exec::Device> device;
  try {
    device = open_device(job);
  } catch (const Error& error) {
    log::debug("memory and times are estimates: {}", error.what());
    return;
  }
  const auto threads = static_cast<int>(job.cluster.threads);
  database_ = std::make_unique<profile::Database>(profile_of(job));
  traces_ = std::make_unique<profile::TraceDatabase>(*database_, threads, device);
  recorded_ = std::make_unique<profile::KnownTraces>(*traces_);
  times_ = std::make_unique<profile::TimeDatabase>(times_of(*database_, *device, job, ranks));
}

RecordedProfile::~RecordedProfile() = default;

compile::TraceSource& RecordedProfile::traces() {
  return recorded_ ? static_cast<compile::TraceSource&>(*recorded_) : no_traces_;
}

cost::Measurements& RecordedProfile::times() {
  return times_ ? static_cast<cost::Measurements&>(*times_) : no_times_;
}

void RecordedProfile::forget() {
  if (times_) times_->forget();
}

}  // namespace perigee::train
