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

// Times of one kind of device (profile::device_kind), each read from the file once.
class TimeDatabase : public cost::Measurements {
 public:
  // Keeps `database` by reference. `together`: number of ranks that run ops concurrently and share
  // a CPU's memory and caches; 1 where each rank has a device of its own. `carrier`: of
  // collectives, if it is not the device's usual one; their times are kept apart.
  TimeDatabase(Database& database, std::string device, int64_t together = 1,
               std::string carrier = "")
      : database_(database),
        device_(std::move(device)),
        together_(together),
        carrier_(std::move(carrier)) {}

  // Returns the seconds measured with `together` concurrent ranks, else with half as many, and so
  // on, else with more.
  std::optional<double> op(const std::string& instance) override;
  // Returns the seconds measured for nearly equal bytes, else those of the line through all points;
  // nothing where measured sizes are too few or too far from `bytes`.
  std::optional<double> collective(const cost::ExchangeKind& kind, double bytes);
  std::optional<double> collective(const cost::Cluster& cluster, cost::CollectiveKind kind,
                                   double bytes, const std::vector<int64_t>& group) override {
    return collective(cost::exchange_kind(cluster, kind, group), bytes);
  }

  // Drops the times read so far, so that they are read from the file again.
  void forget();

  void put(const std::string& instance, const Measured& measured);
  // Returns whether the op was measured with `together` concurrent ranks.
  bool knows(const std::string& instance);
  // Adds points to the known ones of the kind; replaces points of equal bytes.
  void put(const cost::ExchangeKind& kind, const Points& points);
  // Returns whether a collective of nearly equal bytes was measured.
  bool knows(const cost::ExchangeKind& kind, double bytes);

 private:
  struct Collective {
    Points points;
    Line line;
  };
  const Collective& find(const cost::ExchangeKind& kind);
  Database::Key key_of(const cost::ExchangeKind& kind) const;
  Database::Key key_of(const std::string& instance, int64_t together) const;
  std::optional<double> look_up(const std::string& instance, int64_t together);

  Database& database_;
  std::string device_;
  int64_t together_;
  std::string carrier_;
  std::map<std::string, std::optional<double>> ops_;
  std::map<cost::ExchangeKind, Collective> collectives_;
};

// Returns the kinds of device (device_kind) with times of ops or collectives.
std::set<std::string> measured_devices(Database& database);
// Returns the kinds of device in the output of export_json. Throws Error for any other text.
std::set<std::string> devices_of(const std::string& json, const std::string& file);

// Returns the whole database as JSON ("perigee.profile/1"), sorted.
std::string export_json(Database& database);
// Adds the entries of export_json's output; replaces those of the same kind, device and content.
// Returns their number. Throws Error naming an invalid entry.
int64_t import_json(Database& database, const std::string& json, const std::string& file);

}  // namespace perigee::profile
