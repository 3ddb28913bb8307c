// Completes a job whose keys have known places in a file.
#pragma once

#include <functional>

#include "job/job.h"

namespace perigee::job {

// Returns the prefix of an error about the key or table: "gpt.toml:7:9: ".
using Where = std::function<std::string(std::string_view key)>;

// The keys of [data] of which one says where samples come from, for messages.
inline constexpr const char* kSources =
    "text, tokens, jsonl, conversations, tensors, synthetic and [[data.sources]]";

// Job::complete with the places of the keys.
void complete(Job& job, const Where& where);

// The part of it for [data] and [[data.sources]].
void complete_data(Job& job, const Where& where);

}  // namespace perigee::job
