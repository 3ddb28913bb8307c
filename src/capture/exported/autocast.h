// torch.autocast in exports: while a region of it runs, ops get their operands in the types that
// PyTorch's autocast gives them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <vector>

namespace perigee::exported {

struct Autocast {
  c10::DeviceType device = c10::kCPU;  // the device whose lists of ops count: CPU or CUDA
  bool enabled = false;
  c10::ScalarType type = c10::kBFloat16;
  bool caches = true;  // a parameter is cast once within the outermost region
  int outermost = -1;  // a number of the outermost region that this one is within
};

// The autocast state of this thread: none until a region is entered. The destructor restores the
// state that the constructor found. Tensors of the capture device
// follow the lists of the region's device; eager ones are cast where they are on that device.
class AutocastState {
 public:
  AutocastState();
  ~AutocastState();
  AutocastState(const AutocastState&) = delete;
  AutocastState& operator=(const AutocastState&) = delete;

  // Enters a region, or none, from the region entered before.
  void enter(const std::optional<Autocast>& region);

 private:
  struct OfDevice {
    bool enabled = false;
    c10::ScalarType type = c10::kFloat;
  };

  std::vector<OfDevice> before_;  // as the constructor found them
  bool caches_ = true;            // the same
  int outermost_ = -1;
};

}  // namespace perigee::exported
