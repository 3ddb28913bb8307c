// `model.around`: functions of a script that are captured with a model of any kind.
#pragma once

#include <set>
#include <string>

#include "binding/model.h"

namespace perigee::binding {

// Returns the forward function wrapped in the script's functions. The script's result, or the field
// `around` of a strategy script's result, is a table of
//   prepare(batch)       returns the batch that the model sees, a table of tensors by name; with
//                        model.unpack = "sequence" it may be a list, whose items become fields
//                        field_name(0), ...
//   loss(batch, output)  returns the loss, a scalar, or a list that begins with it; `output` is the
//                        model's result, or a table of its results by name where it has several
// `fields`: all fields of a batch. Where one is missing (`perigee sample` has no labels) no
// loss is computed. Throws Error at the script's line.
Forward around(Forward forward, std::set<std::string> fields, const LuaModelSettings& settings);

}  // namespace perigee::binding
