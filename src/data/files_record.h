// The files that a run learns from, recorded so that a resumed run finds them as they were.
#pragma once

#include <string>
#include <vector>

namespace perigee::data {

// Returns, as JSON, the files with their sizes and a hash of parts of their content: 16 pieces of
// 16 KiB, from the first to the last, or all of a smaller file. Throws Error for a file that cannot
// be read.
std::string record_files(const std::vector<std::string>& files);

// Returns a hash of parts of the content, as above, of up to 16 of the files, from the first to the
// last. Throws Error for a file that cannot be read.
std::string sample_hash(const std::vector<std::string>& files);

// Throws Error naming the first file that has changed, grown, gone or been added since `record` was
// made. An empty record passes.
void check_files(const std::string& record, const std::vector<std::string>& files);

}  // namespace perigee::data
