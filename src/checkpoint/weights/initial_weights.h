// First values of a model's tensors from files of weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/models/hf/names.h"
#include "checkpoint/weights/weight_files.h"
#include "graph/dtype.h"
#include "mesh/placement.h"

namespace perigee::checkpoint {

// A parameter or buffer of the model.
struct WantedTensor {
  std::string name;
  graph::DType dtype = graph::DType::float32;
  std::vector<int64_t> shape;
  std::vector<std::string> aliases = {};  // further names of it (tied weights)
};

class InitialWeights {
 public:
  // Opens the files at `path` (WeightFiles). Their tensors have the model's own names, or those of
  // Hugging Face for kinds that hf::names_of knows. Everything is checked here, before a value is
  // read. Throws Error for a tensor of another shape, or of another type (floating types are
  // converted into each other); for files that hold no tensor of the model; and, unless `partial`,
  // for tensors that are missing, and for tensors that are not of the model.
  InitialWeights(const std::string& path, const job::ModelConfig& model,
                 const std::vector<WantedTensor>& wanted, bool partial);

  // Returns whether the files hold the model's tensor.
  bool has(std::string_view name) const { return found_.contains(name); }
  // Reads one part of the tensor, one range per dim, into a tensor of the part's shape.
  // Warns of numbers that are not finite.
  void read(std::string_view name, const std::vector<mesh::Range>& ranges, at::Tensor target) const;
  // Returns the bytes of elements that read() has read, and those of all tensors of the model.
  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes() const;
  // Returns "291 of 291 tensors loaded from DIR", with the numbers of those that are initialised by
  // the model and of those that are not used.
  std::string report() const;

 private:
  struct Found {
    std::vector<const TensorBytes*> stored;  // of experts one each
    hf::Form form = hf::Form::same;
  };
  // Returns the tensor under its own name or another's, whichever the files have.
  std::optional<Found> look_up(const WantedTensor& wanted, const std::optional<hf::Names>& names,
                               bool without_prefix) const;
  void check(const WantedTensor& wanted, const Found& found) const;
  // Throws Error where the head is the embedding, and the files have a head with other values.
  void require_tied() const;

  WeightFiles files_;
  std::map<std::string, Found, std::less<>> found_;
  int64_t heads_ = 1;
  size_t wanted_ = 0, unused_ = 0;
  mutable int64_t bytes_read_ = 0;
};

}  // namespace perigee::checkpoint
