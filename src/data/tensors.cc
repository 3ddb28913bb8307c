// Samples from safetensors files: tensors of one name are joined along dim 0, whose size all names
// share. An input that is no batch (data.batched) is in one of the files, whole.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "checkpoint/safetensors.h"
#include "data/data.h"
#include "data/sampler.h"
#include "exec/tensor.h"

namespace perigee::data {
namespace {

// One name's tensor over all files.
struct Column {
  std::string name;
  graph::DType dtype = graph::DType::float32;
  std::vector<int64_t> shape;  // without the samples
  int64_t row_bytes = 0;
  std::vector<std::span<const std::byte>> parts;  // one a file
};

struct Table {
  std::vector<checkpoint::SafetensorsFile> files;
  std::vector<std::string> paths;  // of these
  std::vector<int64_t> ends;       // samples up to and with each file
  std::vector<Column> columns;
  Batch same;  // the tensors that are the same for all samples

  int64_t size() const { return ends.empty() ? 0 : ends.back(); }
};

// Moves the tensors that are the same for all samples out of the file's tensors.
void take_same(Table& table, std::vector<checkpoint::TensorBytes>& tensors,
               const job::DataConfig& data, const std::string& path) {
  for (const auto& tensor : tensors) {
    if (data.is_batched(tensor.name)) continue;
    if (table.same.contains(tensor.name)) {
      fail("data",
           "a tensor that is the same for all samples (not in data.batched) must be in one file "
           "only, but "
           "{} is in {}, too",
           tensor.name, path);
    }
    auto whole = at::empty(tensor.shape, exec::scalar_type(tensor.dtype));
    std::memcpy(whole.data_ptr(), tensor.bytes.data(), tensor.bytes.size());
    table.same[tensor.name] = whole;
  }
  std::erase_if(tensors, [&](const auto& tensor) { return !data.is_batched(tensor.name); });
}

void add_file(Table& table, const std::string& path, const job::DataConfig& data) {
  table.files.emplace_back(path);
  auto tensors = table.files.back().tensors();
  if (tensors.empty())
    fail("data", "{} must hold the model's inputs as tensors, but it holds none", path);
  take_same(table, tensors, data, path);
  if (tensors.empty()) return table.files.pop_back();
  table.paths.push_back(path);
  const int64_t samples = tensors.front().shape.empty() ? 0 : tensors.front().shape.front();
  const bool first = table.columns.empty();
  for (const auto& tensor : tensors) {
    if (tensor.shape.empty() || tensor.shape.front() != samples) {
      fail("data",
           "all tensors of {} must have as many samples (dim 0), but {} has another count than {}",
           path, tensor.name, tensors.front().name);
    }
    const std::vector<int64_t> shape(tensor.shape.begin() + 1, tensor.shape.end());
    auto column = std::find_if(table.columns.begin(), table.columns.end(),
                               [&](const Column& c) { return c.name == tensor.name; });
    if (column == table.columns.end()) {
      if (!first)
        fail("data", "all files must hold the same tensors, but only {} and later have {}", path,
             tensor.name);
      int64_t bytes = static_cast<int64_t>(graph::size_of(tensor.dtype));
      for (const auto size : shape) bytes *= size;
      table.columns.push_back({tensor.name, tensor.dtype, shape, bytes, {}});
      column = table.columns.end() - 1;
    }
    if (column->dtype != tensor.dtype || column->shape != shape) {
      fail("data",
           "tensor {} must have one dtype and sample shape in all files, but {} has another",
           tensor.name, path);
    }
    column->parts.push_back(tensor.bytes);
  }
  for (const auto& column : table.columns) {
    if (column.parts.size() != table.files.size()) {
      fail("data", "all files must hold the same tensors, but {} has no {}", path, column.name);
    }
  }
  table.ends.push_back(table.size() + samples);
}

class Rows : public DataSource {
 public:
  Rows(std::shared_ptr<const Table> table, const job::Job& job, const IdLimit& limit, Range rows,
       Sampler sampler)
      : table_(std::move(table)),
        limit_(limit),
        global_(job.batch.global),
        rows_(rows),
        sampler_(std::move(sampler)) {}

  Batch at(int64_t step, Range samples) override {
    auto batch = table_->same;
    for (const auto& column : table_->columns) {
      auto shape = column.shape;
      shape.insert(shape.begin(), samples.length);
      auto tensor = at::empty(shape, exec::scalar_type(column.dtype));
      auto* out = static_cast<std::byte*>(tensor.data_ptr());
      for (int64_t i = 0; i < samples.length && step > 0; ++i) {
        const auto sample = (step - 1) * global_ + samples.begin + i;
        const auto row = rows_.begin + sampler_(sample, rows_.length);
        const auto part = std::upper_bound(table_->ends.begin(), table_->ends.end(), row) -
                          table_->ends.begin();
        const auto first = part == 0 ? 0 : table_->ends[part - 1];
        std::memcpy(out + i * column.row_bytes,
                    column.parts[part].data() + (row - first) * column.row_bytes, column.row_bytes);
        if (column.name == "tokens") check_ids(tensor[i], table_->paths[part], row - first);
      }
      batch[column.name] = tensor;
    }
    return batch;
  }

  std::vector<int64_t> indices(int64_t step, Range samples) override {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < samples.length; ++i) {
      const auto sample = (step - 1) * global_ + samples.begin + i;
      places.push_back(rows_.begin + sampler_(sample, rows_.length));
    }
    return places;
  }

 private:
  void check_ids(const at::Tensor& ids, const std::string& path, int64_t sample) const {
    if (limit_.below == 0 || ids.scalar_type() != at::kLong || ids.numel() == 0) return;
    const auto [least, most] = ids.aminmax();
    const auto low = least.item<int64_t>(), high = most.item<int64_t>();
    if (low >= 0 && high < limit_.below) return;
    fail("data", "token ids must be at least 0 and below {} = {}, but sample {} of {} has {}",
         limit_.why, limit_.below, sample, path, low < 0 ? low : high);
  }

  std::shared_ptr<const Table> table_;
  IdLimit limit_;
  int64_t global_;
  Range rows_;
  Sampler sampler_;
};

}  // namespace

Data open_tensors(const job::Job& job, const IdLimit& limit) {
  auto table = std::make_shared<Table>();
  for (const auto& path : job.data.files) add_file(*table, path, job.data);
  const auto held_out = static_cast<int64_t>(double(table->size()) * job.data.validation);
  const auto trained = table->size() - held_out;
  if (trained < 1)
    fail("data", "data must hold at least one sample for training, but it holds {}", table->size());
  Data data;
  for (const auto& column : table->columns) data.fields.push_back(column.name);
  data.training = std::make_unique<Rows>(table, job, limit, Range{0, trained}, make_sampler(job));
  data.validation.batches = held_out / job.batch.global;
  if (data.validation.batches > 0) {
    data.validation.data = std::make_unique<Rows>(table, job, limit, Range{trained, held_out},
                                                  sequential);
  }
  return data;
}

}  // namespace perigee::data
