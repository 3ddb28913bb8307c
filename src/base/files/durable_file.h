// A file that is written in pieces.
#pragma once

#include <string>
#include <string_view>

#include "base/files/durable.h"

namespace perigee {

// A file at its destination that appears when it is complete: without finish() the destination stays
// as it was. Functions throw Error (failed) naming the path and the system's reason.
class DurableFile {
 public:
  explicit DurableFile(const std::string& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::string_view bytes);
  void finish();  // the file is on disk when this returns

 private:
  [[noreturn]] void refuse(int why) const;

  std::string path_;
  Destination to_;
  int fd_;
};

}  // namespace perigee
