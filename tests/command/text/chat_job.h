// A job of a model that can be talked to.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/command/support.h"
#include "tests/support/letters_tokenizer.h"

namespace perigee::test {

inline const std::string kTemplate =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";

// A job on a tiny Llama of 24 tokens with a chat template; it has no checkpoint.
class ChatJob {
 public:
  ChatJob() {
    std::filesystem::copy("tests/train/hf/fixtures/llama", folder_ / "model");
    folder_.write("model/tokenizer.json",
                  letters_tokenizer("abcdefghijklmnopqrst", {"<u>", "<a>", "<s>", "</s>"}));
    folder_.write("model/tokenizer_config.json",
                  nlohmann::json({{"chat_template", kTemplate}, {"eos_token", "</s>"}}).dump());
    job_ = folder_.write("job.toml",
                         "[model]\nkind = \"hf\"\nfolder = \"" + (folder_ / "model") +
                             "\"\n[data]\nsynthetic = true\nsequence = 24\ntokenizer = \"" +
                             (folder_ / "model/tokenizer.json") +
                             "\"\n[batch]\nglobal = 2\n[train]\nsteps = 1\nweights = \"" +
                             (folder_ / "model") + "\"\noutput = \"" + (folder_ / "run") +
                             "\"\n[cluster]\ndevice = \"cpu\"\n");
  }

  const std::string& file() const { return job_; }
  const Folder& folder() const { return folder_; }

  // Runs `perigee chat` with these lines of standard input.
  Ran chat(const std::string& lines, const std::string& options = "") const {
    std::string command = "printf '" + lines + "' |";
    for (const auto& word : perigee_command("chat " + job_ + " --temperature 0 " + options)) {
      command += " '" + word + "'";
    }
    return Process({"bash", "-c", command}).wait();
  }

 private:
  Folder folder_;
  std::string job_;
};

}  // namespace perigee::test
