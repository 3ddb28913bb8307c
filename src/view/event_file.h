// Event files of TensorBoard (tensorboard/compat/proto/event.proto, as TFRecords): scalars by step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perigee::view {

// One event as a record: its length, a checksum of it, the message, and a checksum of that.
std::string event_record(double wall_time, int64_t step,
                         const std::vector<std::pair<std::string, double>>& scalars);

// The begin of the names of event files.
inline constexpr std::string_view kEventFiles = "events.out.tfevents.";

class EventFile {
 public:
  // Creates events.out.tfevents.TIME.HOST.PID in the folder; TIME: seconds since 1970. Steps of
  // earlier files from `first_step` on no longer count for TensorBoard. Throws Error (failed)
  // naming the file and the system's reason.
  EventFile(const std::string& folder, int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Writes the scalars of a step at once, with the present time; they are float32 in the file.
  // Numbers that are not finite are left out. Throws as above.
  void add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  void write(std::string_view record);

  std::string path_;
  int fd_ = -1;
};

}  // namespace perigee::view
