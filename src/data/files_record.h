// The files that a run learns from, recorded so that a resumed run finds them as they were.
#pragma once

#include <string>
#include <vector>

namespace perigee::data {

// Returns, as JSON, the files with their sizes and a hash of parts of their content: 16 pieces of
// 16 KiB, from the first to the last, or all of a smaller file. Throws Error for a file that cannot
// be read.
// `readers`: the files that say how those are read, the tokenizer and a chat template.
std::string record_files(const std::vector<std::string>& files,
                         const std::vector<std::string>& readers = {});

// Returns a hash of parts of the content, as above, of up to 16 of the files, from the first to the
// last. Throws Error for a file that cannot be read.
std::string sample_hash(const std::vector<std::string>& files);

// Throws Error naming the first file that has changed, grown, gone or been added since `record` was
// made. An empty record passes, and one without readers does with any.
void check_files(const std::string& record, const std::vector<std::string>& files,
                 const std::vector<std::string>& readers = {});

}  // namespace perigee::data
