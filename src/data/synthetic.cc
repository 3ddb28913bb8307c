// Samples without files: random, but with a rule that a model can learn. A sample is a pure
// function of (seed, its number), so no epoch ever repeats.
#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "base/fail.h"
#include "data/data.h"
#include "exec/ops/random.h"
#include "exec/tensor.h"

namespace perigee::data {
namespace {

// Purposes of random numbers; each has a separate stream.
enum Purpose : uint32_t { training = 1, held_out = 2, rule = 3, of_all_samples = 4 };

// The numbers of one sample, in order.
class Draws {
 public:
  Draws(uint64_t seed, Purpose purpose, uint64_t sample)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        counter_{0, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), purpose} {}

  uint32_t word() {
    if (used_ == 4) {
      words_ = exec::philox(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return words_[used_++];
  }
  int64_t below(int64_t n) {
    return static_cast<int64_t>(uint64_t{word()} * static_cast<uint64_t>(n) >> 32);
  }
  double uniform() { return (word() + 0.5) * 0x1p-32; }
  double normal() {  // Box and Muller 1958
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

// A field of the batch before its conversion: float64 or int64.
using Fields = std::vector<std::pair<std::string, at::Tensor>>;

// One kind of sample.
struct Source {
  virtual ~Source() = default;
  // Returns the fields of `count` samples, zeros.
  virtual Fields empty(int64_t count) const = 0;
  // Fills row i.
  virtual void fill(Draws draws, int64_t i, const Fields& fields) const = 0;
};

template <class T>
T* row(const at::Tensor& tensor, int64_t i) {
  return tensor.data_ptr<T>() + (tensor.size(0) ? tensor.numel() / tensor.size(0) : 0) * i;
}

// Every token follows from the one before, but one in eight is random. Only the first 256 ids
// occur, so that a large vocabulary is learnt as fast as a small one.
class TokenRule : public Source {
 public:
  TokenRule(int64_t vocab, int64_t sequence)
      : ids_(std::min<int64_t>(vocab, 256)), sequence_(sequence) {}
  Fields empty(int64_t count) const override {
    return {{"tokens", at::zeros({count, sequence_}, at::kLong)},
            {"labels", at::zeros({count, sequence_}, at::kLong)}};
  }
  void fill(Draws draws, int64_t i, const Fields& fields) const override {
    auto* tokens = row<int64_t>(fields[0].second, i);
    auto* labels = row<int64_t>(fields[1].second, i);
    int64_t token = draws.below(ids_);
    for (int64_t t = 0; t < sequence_; ++t) {
      tokens[t] = token;
      const bool follows = draws.below(8) != 0;
      token = follows ? (5 * token + 3) % ids_ : draws.below(ids_);
      labels[t] = token;
    }
  }

 private:
  int64_t ids_, sequence_;
};

// A linear teacher: its outputs with noise, or the number of the largest one.
class LinearTeacher : public Source {
 public:
  LinearTeacher(int64_t inputs, int64_t outputs, bool classes, uint64_t seed)
      : inputs_(inputs), outputs_(outputs), classes_(classes), weight_(inputs * outputs) {
    Draws draws(seed, rule, 0);
    for (auto& w : weight_) w = draws.normal() / std::sqrt(double(inputs));
  }
  Fields empty(int64_t count) const override {
    return {{"x", at::zeros({count, inputs_}, at::kDouble)},
            {"y",
             classes_ ? at::zeros({count}, at::kLong) : at::zeros({count, outputs_}, at::kDouble)}};
  }
  void fill(Draws draws, int64_t i, const Fields& fields) const override {
    auto* x = row<double>(fields[0].second, i);
    for (int64_t k = 0; k < inputs_; ++k) x[k] = draws.normal();
    double largest = 0;
    for (int64_t o = 0; o < outputs_; ++o) {
      double y = 0.1 * draws.normal();
      for (int64_t k = 0; k < inputs_; ++k) y += weight_[o * inputs_ + k] * x[k];
      if (!classes_) row<double>(fields[1].second, i)[o] = y;
      if (classes_ && (o == 0 || y > largest)) *row<int64_t>(fields[1].second, i) = o;
      largest = o == 0 ? y : std::max(largest, y);
    }
  }

 private:
  int64_t inputs_, outputs_;
  bool classes_;
  std::vector<double> weight_;  // [outputs, inputs]
};

// A wave per class and channel, with noise.
class Waves : public Source {
 public:
  Waves(int64_t classes, int64_t channels, int64_t size, uint64_t seed)
      : classes_(classes), channels_(channels), size_(size), waves_(classes * channels) {
    Draws draws(seed, rule, 0);
    for (auto& wave : waves_) {
      for (auto* part : {&wave.across, &wave.down, &wave.phase}) {
        *part = 2 * std::numbers::pi * draws.uniform();
      }
    }
  }
  Fields empty(int64_t count) const override {
    return {{"image", at::zeros({count, channels_, size_, size_}, at::kDouble)},
            {"label", at::zeros({count}, at::kLong)}};
  }
  void fill(Draws draws, int64_t i, const Fields& fields) const override {
    const auto label = draws.below(classes_);
    *row<int64_t>(fields[1].second, i) = label;
    auto* pixel = row<double>(fields[0].second, i);
    for (int64_t c = 0; c < channels_; ++c) {
      const auto& wave = waves_[label * channels_ + c];
      for (int64_t y = 0; y < size_; ++y) {
        for (int64_t x = 0; x < size_; ++x) {
          const double angle = wave.down * double(y) + wave.across * double(x) + wave.phase;
          *pixel++ = std::sin(angle) + 0.5 * draws.normal();
        }
      }
    }
  }

 private:
  struct Wave {
    double across, down, phase;
  };
  int64_t classes_, channels_, size_;
  std::vector<Wave> waves_;  // [classes, channels]
};

// The fields that a model's script describes. A sample is a sequence that follows from its first
// number: integer fields are that sequence, floating-point fields are waves of it with noise.
class Described : public Source {
 public:
  explicit Described(const job::ModelConfig& model) : fields_(model.fields) {
    for (const auto& field : fields_) {
      if (field.dtype == model.dtype || (field.dtype == "int64" && field.classes > 0)) continue;
      fail("data",
           "synthetic fields are of model.dtype ({}), or int64 with `classes`, but {} of {} is {}: "
           "use data.tensors",
           model.dtype, field.name, model.text("file"), field.dtype);
    }
  }
  Fields empty(int64_t count) const override {
    Fields tensors;
    for (const auto& field : fields_) {
      auto shape = field.shape;
      shape.insert(shape.begin(), count);
      const bool number = graph::is_floating(*graph::dtype_of(field.dtype));
      tensors.emplace_back(field.name, at::zeros(shape, number ? at::kDouble : at::kLong));
    }
    return tensors;
  }
  void fill(Draws draws, int64_t i, const Fields& tensors) const override {
    const auto first = draws.below(256);
    for (size_t f = 0; f < fields_.size(); ++f) {
      const auto& tensor = tensors[f].second;
      const auto count = tensor[0].numel();
      if (tensor.is_floating_point()) {
        const double phase = 2 * std::numbers::pi * double(first) / 256;
        auto* out = row<double>(tensor, i);
        for (int64_t k = 0; k < count; ++k) {
          out[k] = std::sin(phase + 0.1 * double(k)) + 0.5 * draws.normal();
        }
        continue;
      }
      auto* out = row<int64_t>(tensor, i);
      auto token = first;
      for (int64_t k = 0; k < count + fields_[f].shift; ++k) {
        if (k >= fields_[f].shift) out[k - fields_[f].shift] = token % fields_[f].classes;
        token = (5 * token + 3) % 256;
      }
    }
  }

 private:
  std::vector<job::BatchField> fields_;
};

class Synthetic : public DataSource {
 public:
  Synthetic(std::shared_ptr<const Source> source, const job::Job& job, Purpose purpose)
      : source_(std::move(source)),
        data_(job.data),
        dtype_(exec::scalar_type(*graph::dtype_of(job.model.dtype))),
        global_(job.batch.global),
        seed_(static_cast<uint64_t>(job.seed)),
        purpose_(purpose) {}

  Batch at(int64_t step, Range samples) override {
    const auto fields = source_->empty(samples.length);
    for (int64_t i = 0; i < samples.length && step > 0; ++i) {
      const auto sample = (step - 1) * global_ + samples.begin + i;
      source_->fill(Draws(seed_, purpose_, static_cast<uint64_t>(sample)), i, fields);
    }
    const auto same = source_->empty(1);
    source_->fill(Draws(seed_, Purpose::of_all_samples, 0), 0, same);
    Batch batch;
    for (size_t f = 0; f < fields.size(); ++f) {
      const auto& name = fields[f].first;
      const auto tensor = data_.is_batched(name) ? fields[f].second : same[f].second[0];
      batch[name] = tensor.is_floating_point() ? tensor.to(dtype_) : tensor;
    }
    return batch;
  }

 private:
  std::shared_ptr<const Source> source_;
  job::DataConfig data_;
  at::ScalarType dtype_;
  int64_t global_;
  uint64_t seed_;
  Purpose purpose_;
};

// Whether the model learns from tokens and labels: a built-in kind with a vocabulary.
bool is_language(const job::ModelConfig& model) { return model.values.contains("vocab"); }

std::shared_ptr<const Source> source_of(const job::Job& job) {
  const auto& model = job.model;
  const auto seed = static_cast<uint64_t>(job.seed);
  if (is_language(model)) {
    const auto vocab = model.integer("vocab");
    return std::make_shared<TokenRule>(vocab > 0 ? vocab : 256, job.data.sequence);
  }
  if (model.kind == "mlp") {
    return std::make_shared<LinearTeacher>(model.integer("inputs"), model.integer("outputs"),
                                           model.text("loss") == "cross_entropy", seed);
  }
  if (model.kind == "resnet") {
    return std::make_shared<Waves>(model.integer("classes"), model.integer("channels"),
                                   model.integer("image"), seed);
  }
  if (!model.fields.empty()) return std::make_shared<Described>(model);
  fail(
      "data",
      "synthetic data is for the built-in models and scripts that describe a batch, but model.kind "
      "is \"{}\": use data.tensors",
      model.kind);
}

}  // namespace

Data open_synthetic(const job::Job& job) {
  const auto source = source_of(job);
  Data data;
  for (const auto& [name, tensor] : source->empty(0)) data.fields.push_back(name);
  data.training = std::make_unique<Synthetic>(source, job, Purpose::training);
  if (is_language(job.model)) {
    data.vocab = 256;
  }
  if (job.data.validation > 0) {
    data.validation.batches = job.train.validate_batches;
    data.validation.data = std::make_unique<Synthetic>(source, job, Purpose::held_out);
  }
  return data;
}

}  // namespace perigee::data
