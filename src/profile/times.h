// Measured times in the profile database.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cost/op_time.h"
#include "profile/database.h"
#include "profile/measure.h"

namespace perigee::profile {

// Times of one kind of device (profile::device_kind). Finds and keeps them; a plan that asks for
// the same op again asks the file no more.
class TimeDatabase : public cost::Measurements {
 public:
  // `database` is kept by reference. `together`: of how many ranks' ops at once the times are,
  // which share a CPU's memory and caches; 1 where each rank has a device of its own.
  TimeDatabase(Database& database, std::string device, int64_t together = 1)
      : database_(database), device_(std::move(device)), together_(together) {}

  // As measured with as many ranks at once, else with half as many, and so on, else with more.
  std::optional<double> op(const std::string& instance) override;
  // As a collective of nearly so many bytes was measured, else by the line through all; nothing
  // where these are of too few sizes to say what so many bytes take.
  std::optional<double> collective(cost::CollectiveKind kind, int64_t ranks, double bytes) override;

  // Forgets what was found, so that the file is asked again.
  void forget();

  void put(const std::string& instance, const Measured& measured);
  // Whether the op was measured with as many ranks at once.
  bool knows(const std::string& instance);
  // Adds points to those that are known of the kind, in the place of those of as many bytes.
  void put(cost::CollectiveKind kind, int64_t ranks, const Points& points);
  // Whether a collective of so many bytes, or nearly so many, was measured.
  bool knows(cost::CollectiveKind kind, int64_t ranks, double bytes);

 private:
  struct Collective {
    Points points;
    Line line;
  };
  const Collective& find(cost::CollectiveKind kind, int64_t ranks);
  Database::Key key_of(const std::string& instance, int64_t together) const;
  std::optional<double> look_up(const std::string& instance, int64_t together);

  Database& database_;
  std::string device_;
  int64_t together_;
  std::map<std::string, std::optional<double>> ops_;
  std::map<std::pair<cost::CollectiveKind, int64_t>, Collective> collectives_;
};

// Returns the kinds of device (device_kind) of which there are times of ops or collectives.
std::set<std::string> measured_devices(Database& database);
// Returns the kinds of device that the entries of what export_json wrote are of. Throws Error for
// what it did not write.
std::set<std::string> devices_of(const std::string& json, const std::string& file);

// Returns the whole database as JSON ("perigee.profile/1"), sorted.
std::string export_json(Database& database);
// Adds what export_json wrote; what is there of the same kind, device and content is replaced.
// Returns how many entries. Throws Error naming the entry that is none.
int64_t import_json(Database& database, const std::string& json, const std::string& file);

}  // namespace perigee::profile
