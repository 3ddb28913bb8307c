#include "train/output/run_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/target.h"
#include "train/output/metrics.h"
#include "view/event_file.h"
#include "view/run_format.h"

namespace perigee::train {
namespace fs = std::filesystem;
namespace {

// The files of a run, besides its checkpoints.
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kJob = "job.toml";
// A job in a service has absolute paths, as if it were in the root folder.
constexpr const char* kRootJob = "/job.toml";
constexpr const char* kPlan = "plan.json";
constexpr const char* kData = "data.json";
constexpr const char* kMemory = "memory.json";
constexpr const char* kTrace = "trace.json";
constexpr const char* kReport = "plan.html";
constexpr const char* kFiles[] = {kJob,    kPlan,     kData,    kMemory,        kTrace,
                                  kReport, "log.txt", kMetrics, "samples.jsonl"};
constexpr const char* kLock = ".lock";
constexpr const char* kInvocation = ".invocation";

// The metrics of a run that went on from an earlier step, as they were.
std::string aside_name(int64_t number) { return fmt::format("metrics.aside-{}.jsonl", number); }

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string inside(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

// Returns K of a checkpoint step-N.aside-K; 0: it is another one.
int64_t aside_number(const std::string& run, const std::string& checkpoint) {
  for (const auto& folder : checkpoint::step_folders(run)) {
    if (fs::path(folder.path).filename() == fs::path(checkpoint).filename()) return folder.aside;
  }
  return 0;
}

// Returns the last step up to which two files of metrics have the same lines; 0: there is none.
int64_t last_common_step(std::string_view a, std::string_view b) {
  int64_t step = 0;
  for (size_t begin = 0, end; (end = a.find('\n', begin)) != std::string_view::npos;) {
    const auto line = a.substr(begin, end + 1 - begin);
    if (!b.substr(begin).starts_with(line)) break;
    step = std::max(step, step_of_line(line));
    begin = end + 1;
  }
  return step;
}

bool holds_checkpoints(const std::string& run) {
  return std::ranges::any_of(checkpoint::step_folders(run), [](const auto& step) {
    return step.kind != checkpoint::StepFolder::Kind::partial;
  });
}

bool holds_run(const std::string& folder) {
  std::error_code error;
  const auto bytes = fs::file_size(inside(folder, kMetrics), error);
  return (!error && bytes > 0) || holds_checkpoints(folder);
}

// Returns the topmost folder of a path that does not exist, or "".
std::string topmost_missing(fs::path path) {
  std::string missing;
  path = path.lexically_normal();
  for (; !path.empty() && !exists(path.string()); path = path.parent_path()) {
    missing = path.string();
  }
  return missing;
}

// Removes checkpoints first: if the process dies, the rest still counts as a run.
void empty_folder(const std::string& folder) {
  std::error_code ignored;
  checkpoint::remove_checkpoints(folder);
  std::vector<std::string> names(std::begin(kFiles), std::end(kFiles));
  for (int64_t number = 1; exists(inside(folder, aside_name(number))); ++number) {
    names.push_back(aside_name(number));
  }
  for (const auto& file : fs::directory_iterator(folder, ignored)) {
    const auto name = file.path().filename().string();
    if (name.starts_with(view::kEventFiles)) names.push_back(name);
  }
  for (const auto& name : names) {
    std::error_code error;
    fs::remove(inside(folder, name + ".partial"), ignored);
    fs::remove(inside(folder, name), error);
    if (error) {
      fail("run", "{} must be removed by --overwrite, but: {}", inside(folder, name),
           error.message());
    }
  }
}

// Locks the folder for this process until the descriptor is closed or the process ends.
int lock(const std::string& folder) {
  const auto path = inside(folder, kLock);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0 && errno == ELOOP) fail("run", "{} must be a file, but it is a link: remove it", path);
  if (fd < 0) {
    fail("run", "{} must be a folder that can be written, but: {}", folder, std::strerror(errno));
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int why = errno;
  ::close(fd);
  if (why == EWOULDBLOCK) {
    fail("run",
         "one run at a time writes a folder, but another process is writing {}: wait for it, end "
         "it, or choose another train.output",
         folder);
  }
  if (why == ENOLCK || why == ENOSYS || why == EOPNOTSUPP) return -1;  // no locks on this system
  fail("run", "{} must be locked, but: {}", folder, std::strerror(why));
}

// Compares the job with that of the resumed run. Returns the keys that may change and did.
std::vector<std::string> check_job(const std::string& run, const job::Job& job) {
  const auto path = inside(run, kJob);
  if (!checkpoint::open_target(path)->size(path)) {
    fail("run", "a run that is resumed holds job.toml, but there is no {}", path);
  }
  const auto before = checkpoint::is_s3(path)
                          ? job::Job::parse(checkpoint::read_text(path), kRootJob)
                          : job::Job::load(path);
  const auto changed = job::changed_keys(before, job);
  if (changed.empty()) return job::adjusted_keys(before, job);
  const size_t shown = std::min<size_t>(changed.size(), 6);
  fail("run",
       "a resumed run keeps its model, data, batch, optimizer and seed (batch.micro, learning "
       "rates, weight decays, clip_norm and schedules may change), but in {}:\n  {}{}\nSet "
       "them back, or start a new run with another train.output",
       path, fmt::join(changed.begin(), changed.begin() + shown, "\n  "),
       shown < changed.size() ? fmt::format("\n  and {} more", changed.size() - shown) : "");
}

// Returns whether the folder's job.toml says that its checkpoints are in that target.
bool belongs_to(const std::string& file, const std::string& target) {
  return exists(file) && job::Job::load(file).train.checkpoint_target == target;
}

}  // namespace

const std::string& checkpoint_run(const job::Job& job) {
  const auto& target = job.train.checkpoint_target;
  return target.empty() ? job.train.output : target;
}

bool has_checkpoint(const job::Job& job) {
  return std::ranges::any_of(checkpoint::step_folders(checkpoint_run(job)),
                             &checkpoint::StepFolder::complete);
}

RunFolder::RunFolder(const job::Job& job, const RunOptions& options)
    : path_(job.train.output), store_(checkpoint_run(job)) {
  const auto& from = options.resume_from.empty() ? store_ : options.resume_from;
  std::error_code ignored;
  // Don't create a folder for a run that does not exist.
  const bool seen = !checkpoint::is_s3(from) && fs::is_directory(from, ignored);
  if (options.resume && !seen) checkpoint::find_checkpoint(from);
  created_ = topmost_missing(path_);
  const bool is_known = exists(file(kLock));
  try {
    make_folders(path_);
    lock_ = lock(path_);
    made_lock_ = !is_known;  // also where the file system has no locks
    prepare(job, options, from);
  } catch (...) {
    close();
    throw;
  }
}

void RunFolder::prepare(const job::Job& job, const RunOptions& options, const std::string& from) {
  if (options.resume) {
    checkpoint_ = checkpoint::find_checkpoint(from);
    const auto source = checkpoint::run_of(checkpoint_);
    if (!checkpoint::is_s3(source)) view::require_run_format(source);
    resumes_ = checkpoint::is_same_folder(source, store_);
    changes_ = check_job(source, job);
  }
  if (resumes_ && options.overwrite) {
    fail("run", "a run is resumed or overwritten, but got --resume and --overwrite for {}", path_);
  }
  if (is_remote()) holds_metrics_ = exists(file(kMetrics));
  require_free(options);
  if (made_lock_ && !resumes_) require_no_other_files();
}

void RunFolder::require_no_other_files() const {
  if (holds_run(path_)) return;
  for (const auto* name : kFiles) {
    if (!exists(file(name))) continue;
    fail("run",
         "{} must be a new folder or one of a run, but it has a {} that no run wrote, and that a "
         "run would replace: choose another train.output, or move that file",
         path_, name);
  }
}

void RunFolder::require_free(const RunOptions& options) const {
  if (options.overwrite) return;
  // A run whose checkpoints are in a service is resumed in its folder, or in a new one.
  const bool own = resumes_ && (!is_remote() || belongs_to(file(kJob), store_));
  if (!own && holds_run(path_)) {
    fail("run",
         "{} must be a new folder, but it holds another run: go on with it (--resume), empty it "
         "(--overwrite), or choose another train.output",
         path_);
  }
  if (!resumes_ && is_remote() && holds_checkpoints(store_)) {
    fail("run",
         "{} must be new, but it holds checkpoints of another run: go on with them (--resume), "
         "remove them (--overwrite), or choose another train.checkpoint_target",
         store_);
  }
}

bool has_begun(const job::Job& job, const std::string& invocation) {
  if (invocation.empty()) return false;
  const auto path = checkpoint::inside(checkpoint_run(job), kInvocation);
  return checkpoint::open_target(path)->size(path) && checkpoint::read_text(path) == invocation;
}

void RunFolder::begin(const std::string& invocation) {
  if (resumes_) {
    set_later_aside();
  } else {
    empty_folder(path_);
    if (is_remote()) {
      checkpoint::remove_checkpoints(store_);
      const auto target = checkpoint::open_target(store_);
      for (const auto* name : {kJob, kPlan, kData})
        target->remove(checkpoint::inside(store_, name));
    }
  }
  if (!invocation.empty()) {
    checkpoint::open_target(store_)->put(checkpoint::inside(store_, kInvocation), invocation);
  }
  began_ = true;
}

void RunFolder::set_later_aside() const {
  auto step = checkpoint::Checkpoint(checkpoint_).info().step;
  // A checkpoint that was set aside has metrics of its own, and those of the run leave them somewhere.
  const auto number_of_resumed = aside_number(store_, checkpoint_);
  const auto own = file(aside_name(number_of_resumed));
  std::string metrics;
  if (number_of_resumed > 0 && exists(own) && exists(file(kMetrics))) {
    metrics = read_file(own, "run");
    step = std::min(step, last_common_step(metrics, read_file(file(kMetrics), "run")));
  }
  checkpoint::set_aside_later(store_, step, [&](int64_t number) {
    if (!exists(file(kMetrics))) return;
    write_durably(file(aside_name(number)), read_file(file(kMetrics), "run"));
  });
  if (!metrics.empty()) write_durably(file(kMetrics), metrics);
}

void RunFolder::require_own() const {
  struct stat locked {
  }, there{};
  if (lock_ < 0 || ::fstat(lock_, &locked) != 0 || ::stat(file(kLock).c_str(), &there) != 0) return;
  if (locked.st_ino == there.st_ino && locked.st_dev == there.st_dev) return;
  fail_run("run", "{} must stay while a run writes it, but it was removed, and another run has it",
           path_);
}

void RunFolder::require_resumable() const {
  require_own();
  std::vector<std::string> missing;
  for (const auto* name : {kJob, kMetrics}) {
    if (!exists(file(name))) missing.push_back(name);
  }
  if (missing.empty()) return;
  fail_run(
      "run",
      "{} must stay while a run writes it, but {} of it {} removed: the run cannot be resumed; "
      "its last checkpoint is in {}",
      path_, fmt::join(missing, " and "), missing.size() == 1 ? "was" : "were",
      checkpoint::store_of(store_));
}

RunFolder::~RunFolder() { close(); }

void RunFolder::close() {
  if (!began_ && made_lock_) {
    std::error_code ignored;
    fs::remove(file(kLock), ignored);
  }
  if (!began_ && !created_.empty()) {  // folders that are not empty stay
    std::error_code error;
    if (lock_ >= 0) fs::remove(inside(path_, kLock), error);
    for (auto folder = fs::path(path_).lexically_normal(); !error; folder = folder.parent_path()) {
      fs::remove(folder, error);
      if (folder.string() == created_) break;
    }
  }
  if (lock_ >= 0) ::close(lock_);
}

std::string RunFolder::file(std::string_view name) const { return inside(path_, name); }

std::string RunFolder::resumed_plan() const {
  if (checkpoint_.empty()) return "";
  const auto path = inside(checkpoint::run_of(checkpoint_), kPlan);
  return checkpoint::open_target(path)->size(path) ? path : "";
}

std::string RunFolder::resumed_data() const {
  if (checkpoint_.empty()) return "";
  const auto path = inside(checkpoint::run_of(checkpoint_), kData);
  return checkpoint::open_target(path)->size(path) ? checkpoint::read_text(path) : "";
}

void RunFolder::write_data(std::string_view text) const {
  write_durably(file(kData), text);
  if (is_remote()) write_copy(kData, text);
}

void RunFolder::write_job(const job::Job& job) const {
  write_durably(file(kJob), job::to_toml(job, path_));
  if (is_remote()) write_copy(kJob, job::to_toml(job, "/"));
}

void RunFolder::write_plan(std::string_view text) const {
  write_durably(file(kPlan), text);
  if (is_remote()) write_copy(kPlan, text);
}

void RunFolder::write_memory(std::string_view text) const { write_durably(file(kMemory), text); }

void RunFolder::write_trace(std::string_view text) const { write_durably(file(kTrace), text); }

void RunFolder::write_report(std::string_view text) const {
  std::error_code ignored;
  if (!text.empty()) return write_durably(file(kReport), text);
  fs::remove(file(kReport), ignored);
}

void RunFolder::write_copy(const char* name, std::string_view text) const {
  checkpoint::open_target(store_)->put(checkpoint::inside(store_, name), text);
}

}  // namespace perigee::train
