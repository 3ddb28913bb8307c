#include "train/output/shared_folder.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>

#include "base/fail.h"
#include "base/files/durable.h"
#include "train/ranks/share.h"

namespace perigee::train {
namespace {

namespace fs = std::filesystem;

// Network file systems may show another host's new file late.
constexpr double kPatience = 3;  // seconds

bool sees(const fs::path& file, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::error_code ignored;
  while (!fs::exists(file, ignored)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

}  // namespace

void require_shared_folder(const job::Job& job, exec::Communicator& communicator) {
  if (communicator.world() == 1) return;
  const auto& folder = job.train.output;
  const auto all = everyone(communicator);
  const bool root = communicator.rank() == 0;
  const auto name = share_text(root ? fmt::format(".seen-{:08x}", std::random_device()()) : "",
                               *all);
  const auto file = fs::path(folder) / name;
  if (root) write_durably(file, "");
  barrier(communicator);
  const auto answers = gather_texts(
      sees(file, std::min(kPatience, job.cluster.timeout / 2)) ? "" : folder, *all);
  std::error_code ignored;
  if (root) fs::remove(file, ignored);
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].empty()) continue;
    fail("checkpoint",
         "train.output must be on a file system that all ranks share, but rank {} does not see in "
         "{} "
         "what rank 0 writes there: share the folder, or set train.checkpoint_target = "
         "\"s3://BUCKET/PREFIX\"",
         rank, answers[rank]);
  }
}

}  // namespace perigee::train
