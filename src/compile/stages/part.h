// The owner of a section or a frame, with a pipeline.
#pragma once

#include <compare>
#include <string>

namespace perigee::compile {

// A part of the rank's stage, or a variant of it with sections and a frame of its own.
struct PartId {
  int part = -1;  // -1: of none
  // The variant for microbatches that keep results which the others recompute
  // (plan::Recompute::kept_microbatches), where a stage has both.
  bool kept = false;
  // Weight gradients that run at the end of the stage's order (plan::Overlap::deferred): the frame
  // holds their operands.
  bool deferred = false;
  // The receive buffers of messages that arrive before the part's section
  // runs (plan::Overlap::receives).
  bool received = false;

  bool defined() const { return part >= 0; }
  auto operator<=>(const PartId&) const = default;
};

// Returns "3", "3.kept", "3.deferred", "3.kept.deferred", "3.received".
inline std::string to_string(const PartId& id) {
  return std::to_string(id.part) + (id.kept ? ".kept" : "") + (id.deferred ? ".deferred" : "") +
         (id.received ? ".received" : "");
}

// Returns the name of its frame, or of its frame on the host.
inline std::string frame_name(const PartId& id, bool host) {
  return "microbatch." + to_string(id) + (host ? " host" : "");
}

}  // namespace perigee::compile
