#include "train/commands/move_profile.h"

#include <fmt/format.h>

#include "base/files/durable.h"
#include "base/files/file.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "train/measure/profile_path.h"
#include "train/measure/recorded_profile.h"

namespace perigee::train {

std::string move_profile(const ProfileOptions& options) {
  profile::Database database(default_profile(), {.tells = false});
  database.require_file();
  std::string text;
  if (!options.import_from.empty()) {
    const auto json = read_file(options.import_from, "profile");
    check_import(json, options.import_from);
    const auto count = profile::import_json(database, json, options.import_from);
    text += fmt::format("{} entries of {} are in {}\n", count, options.import_from,
                        database.path());
  }
  if (!options.export_to.empty()) {
    write_durably(options.export_to, profile::export_json(database));
    text += fmt::format("{} is in {}\n", database.path(), options.export_to);
  }
  return text;
}

}  // namespace perigee::train
