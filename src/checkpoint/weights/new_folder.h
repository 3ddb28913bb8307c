// Writing a folder that is complete or does not exist.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace perigee::checkpoint {

// Throws Error naming the command's `option` where there is something at `folder` other than an
// empty folder. Calls write(path) for a folder beside it, which is renamed afterwards; removed where
// `write` throws.
void write_new_folder(const std::string& folder, std::string_view option,
                      const std::function<void(const std::string& path)>& write);

}  // namespace perigee::checkpoint
