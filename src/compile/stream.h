// Streams of a program: work on a stream runs in order, concurrently with other streams.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/axis_set.h"

namespace perigee::compile {

struct Stream {
  // clang-format off
  enum class Kind : uint8_t {
    compute,    // "compute"
    group,      // collectives of the ranks over `axes`: "data,context", on channel 1 "data#1"
    stages,     // collectives of some stages of a pipeline: "pipe:0,2"
    message,    // from one stage of a pipeline to another: "pipe:0>1/3>4"
    to_host,    // copies from the device to its host: "to host"
    from_host,  // copies back: "from host"
  };
  // clang-format on

  // One end of a message.
  struct End {
    int64_t stage = 0;
    int64_t place = -1;  // the rank's position in its stage; -1: all stages have the same submesh
    int part = -1;       // of the pipeline; -1: unknown
    auto operator<=>(const End&) const = default;
  };

  Kind kind = Kind::compute;
  mesh::AxisSet axes;           // group; stages, message: the pipeline's axis
  int32_t channel = 0;          // group: number among the streams of the same ranks
  std::vector<int64_t> stages;  // stages: positions on the axis
  End from, to;                 // message

  static Stream compute() { return {}; }
  static Stream to_host() { return of(Kind::to_host); }
  static Stream from_host() { return of(Kind::from_host); }
  static Stream over(mesh::AxisSet axes, int32_t channel = 0);
  static Stream of_stages(const std::string& axis, std::vector<int64_t> stages);
  static Stream message(const std::string& axis, End from, End to);
  // Parses a name, as the "axis" of a collective has it. Throws Error.
  static Stream parse(std::string_view name);

  // Returns the printed name.
  std::string name() const;
  bool communicates() const {
    return kind == Kind::group || kind == Kind::stages || kind == Kind::message;
  }
  bool copies_to_or_from_host() const { return kind == Kind::to_host || kind == Kind::from_host; }
  bool operator==(const Stream&) const = default;
  auto operator<=>(const Stream&) const = default;

 private:
  static Stream of(Kind kind);
};

}  // namespace perigee::compile
