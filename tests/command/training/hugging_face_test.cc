// A folder of Hugging Face through the command: trained, exported and trained again.
#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Contains;

namespace {

// A job for the model of a folder.
struct HfJob {
  Folder folder;
  std::string file;

  explicit HfJob(const std::string& model)
      : file(folder.write(
            "job.toml",
            "[model]\nkind = \"hf\"\nfolder = \"" + std::filesystem::absolute(model).string() +
                "\"\n[data]\nsynthetic = true\nsequence = 8\nvalidation = 0.0\n"
                "[batch]\nglobal = 8\n[train]\nsteps = 2\nvalidate_every = 0\n"
                "output = \"" +
                (folder / "run") + "\"\n[cluster]\ndevice = \"cpu\"\ntimeout = 20\n")) {}
  Ran operator()(const std::string& words) const {
    return run(words, {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}});
  }
  Ran good(const std::string& words) const {
    auto ran = (*this)(words);
    INFO(words << "\n" << ran.err);
    REQUIRE(ran.status == 0);
    return ran;
  }
  std::string refused(const std::string& words) const {
    const auto ran = (*this)(words);
    INFO(words << "\n" << ran.out << ran.err);
    CHECK(ran.status == 2);
    return ran.err;
  }
};

const std::string kLlama = "tests/train/hf/fixtures/llama";

}  // namespace

TEST_CASE("a folder of Hugging Face is trained over ranks, exported and trained again") {
  const HfJob job(kLlama);
  const auto ran = job.good("train " + job.file + " --nproc 2");
  CHECK_THAT(ran.out + ran.err, Contains("35 of 35 tensors loaded from ") && Contains(kLlama));
  const auto tuned = job.folder / "tuned";
  job.good("export " + (job.folder / "run") + " --hf " + tuned + " --shard-size 6KB");
  CHECK(std::filesystem::exists(tuned + "/model.safetensors.index.json"));
  CHECK(read(tuned + "/config.json") == read(kLlama + "/config.json"));
  const HfJob next(tuned);
  const auto again = next.good("train " + next.file);
  CHECK_THAT(again.out + again.err, Contains("35 of 35 tensors loaded from " + tuned));
  next.good("evaluate " + next.file + " --set data.validation=0.5");

  CHECK_THAT(job.refused("export " + (job.folder / "run") + " --hf " + tuned),
             Contains("--hf names a new or empty folder"));
  job.refused("export " + (job.folder / "run"));
  job.refused("export " + (job.folder / "run") + " -o a.safetensors --dtype float32");
  job.refused("export " + (job.folder / "run") + " --hf " + (job.folder / "x") + " --dtype int8");
  CHECK_THAT(job.refused("train " + job.file + " --overwrite --set model.vocab=25"),
             Contains("model.vocab is the vocab_size of") && Contains("(24), but got 25"));
  for (const auto& name : names_in(tuned)) {
    if (name.starts_with("model-00001-of-")) std::filesystem::remove(tuned + "/" + name);
  }
  CHECK_THAT(next.refused("train " + next.file + " --overwrite --nproc 2"),
             Contains("must lie beside it, but 1 of"));
}
