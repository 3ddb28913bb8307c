// grad_comm: how gradients are reduced over the batch's axes.
#include <algorithm>

#include "base/error.h"
#include "methods/low_precision.h"
#include "methods/method.h"

namespace perigee::methods {
namespace {

// The least and the most of a number.
struct Limits {
  double least, most;
};

class GradComm : public Method {
 public:
  std::string_view name() const override { return "grad_comm"; }
  std::string_view doc() const override {
    return "How gradients are reduced: in which buckets and on how many streams, in which "
           "precision, as a mean or a sum, and on which side of clipping.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"bucket_mb", "number", "smallest size of a bucket in MiB; default 25"},
        {"buckets", "integer",
         "at most so many buckets of gradients that are reduced alike, which then grow above "
         "bucket_mb; default any number"},
        {"overlap", "boolean",
         "start a bucket as soon as its last gradient is there; default true"},
        {"communicators", "integer",
         "streams over the data axis that buckets take turns on; default 1"},
        {"dtype", "string",
         "`fp16` or `bf16`: gradients are rounded to it and reduced in it; default as they are"},
        {"scale", "number",
         "gradients are multiplied by it before they are rounded, and divided after the "
         "reduction; default 128 with fp16, 1 with bf16"},
        {"reduce", "string",
         "`mean`, or `sum` over data ranks and microbatches: as many times larger, for a mean "
         "loss; default mean"},
        {"clip", "string",
         "`after` the reduction, or `before`: each data rank clips the gradient of its own "
         "samples, which is not what one device does; default after"},
        {"sparse", "string",
         "gradients of embeddings: `dense` ones are all-reduced, `gathered` ones made from all "
         "ranks' indices and rows, which are gathered in every microbatch; `any`: gathered where "
         "the model has such gradients; default dense"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    auto& communication = plan.communication;
    const auto& fields = config.fields;
    if (fields.contains("bucket_mb")) {
      const auto size = fields["bucket_mb"].get<double>();
      if (!(size > 0 && size < 1e6))
        fail("grad_comm", "bucket_mb must be above 0 and below 1e6, but got {}", size);
      communication.bucket_bytes = static_cast<int64_t>(size * (1 << 20));
    }
    read_count(fields, "buckets", {1, 1e6}, communication.buckets);
    read_count(fields, "communicators", {1, 64}, communication.communicators);
    if (fields.contains("overlap")) communication.overlap = fields["overlap"].get<bool>();
    if (fields.contains("dtype")) {
      const auto dtype = dtype_named(fields["dtype"].get<std::string>(), name(), "dtype");
      if (dtype == graph::DType::float32) {
        fail("grad_comm", "dtype must be fp16 or bf16, but got {}", fields["dtype"].dump());
      }
      communication.reduce_dtype = dtype;
      communication.reduce_scale = dtype == graph::DType::float16 ? 128 : 1;
    }
    if (fields.contains("scale")) {
      const auto scale = fields["scale"].get<double>();
      if (!communication.reduce_dtype) {
        fail("grad_comm", "scale {} is that of a dtype, but there is none", scale);
      }
      if (!(scale > 0 && scale < 1e30)) {
        fail("grad_comm", "scale must be above 0 and below 1e30, but got {}", scale);
      }
      communication.reduce_scale = scale;
    }
    communication.sum = read_choice(fields, "reduce", "mean", "sum");
    communication.clip_first = read_choice(fields, "clip", "after", "before");
    const auto sparse = fields.value("sparse", std::string("dense"));
    const std::vector<std::string> known = {"dense", "gathered", "any"};
    if (std::find(known.begin(), known.end(), sparse) == known.end()) {
      fail("grad_comm", "sparse must be dense, gathered or any, but got \"{}\"{}", sparse,
           did_you_mean(sparse, known));
    }
    const auto gathered = sparse == "dense"
                              ? std::vector<std::string>()
                              : gather_embeddings(plan, *request.graph, sparse == "gathered");
    plan.decisions.push_back({"grad_comm", sentence(plan, gathered)});
  }

 private:
  void read_count(const Json& fields, const char* field, Limits limits, int64_t& count) const {
    if (!fields.contains(field)) return;
    count = fields[field].get<int64_t>();
    if (count < limits.least || count > limits.most) {
      fail("grad_comm", "{} must be {} to {}, but got {}", field, limits.least, limits.most, count);
    }
  }

  // Returns whether the field names the second of its two values.
  bool read_choice(const Json& fields, const char* field, const char* usual,
                   const char* other) const {
    if (!fields.contains(field)) return false;
    const auto text = fields[field].get<std::string>();
    if (text == other) return true;
    if (text == usual) return false;
    const std::vector<std::string> known = {usual, other};
    fail("grad_comm", "{} must be {} or {}, but got \"{}\"{}", field, usual, other, text,
         did_you_mean(text, known));
  }

  // Has the rows that go into an embedding's gradient, and so the gradient, be whole on the batch's
  // axes. Returns the parameters; none is an error where one is `needed`.
  static std::vector<std::string> gather_embeddings(plan::Plan& plan, const graph::Graph& graph,
                                                    bool needed) {
    const auto names = graph::value_names(graph);
    const auto batch = mesh::split_axes(plan.batch_axes);
    const auto pin = [&](graph::ValueId v) {
      auto& placements = plan.placements[names[v.index]];
      placements.resize(plan.mesh.axes.size(), mesh::Placement::open());
      for (size_t a = 0; a < placements.size(); ++a) {
        if (std::find(batch.begin(), batch.end(), plan.mesh.axes[a].name) != batch.end()) {
          placements[a] = mesh::Placement::replicate();
        }
      }
    };
    // Positions are the same on all ranks.
    std::vector<bool> from_data(graph.values.size());
    for (const auto& input : graph.inputs) {
      from_data[input.value.index] = input.kind == graph::Input::Kind::data && input.batched;
    }
    for (const auto& node : graph.nodes) {
      bool depends = false;
      node.each_operand([&](graph::ValueId v) { depends = depends || from_data[v.index]; });
      for (auto v : node.outputs) {
        if (v.defined()) from_data[v.index] = depends;
      }
    }
    std::vector<std::string> gathered;
    for (const auto& output : graph.outputs) {
      if (output.kind != graph::Output::Kind::gradient || !output.value.defined()) continue;
      const auto producer = graph.values[output.value.index].producer;
      if (producer < 0) continue;
      const auto& node = graph.nodes[producer];
      if (node.op != "aten::embedding_dense_backward") continue;
      if (!from_data[std::get<graph::ValueId>(*node.find("indices")).index]) continue;
      pin(std::get<graph::ValueId>(*node.find("grad_output")));
      pin(output.value);
      gathered.push_back(output.name);
    }
    if (gathered.empty() && needed) {
      fail("grad_comm",
           "sparse = \"gathered\" needs a gradient that an embedding alone makes, but the model "
           "has none: that of a weight which is the head, too, is dense; leave sparse out");
    }
    return gathered;
  }

  static std::string sentence(const plan::Plan& plan, const std::vector<std::string>& gathered) {
    const auto& communication = plan.communication;
    auto text = fmt::format(
        "gradients are {} in buckets of at least {:.4g} MiB{}, {}",
        communication.sum ? "summed over data ranks and microbatches" : "reduced",
        communication.bucket_bytes / double(1 << 20),
        communication.buckets > 0 ? fmt::format(" (at most {})", communication.buckets) : "",
        communication.overlap ? "each as soon as it is complete" : "all after the backward pass");
    if (communication.communicators > 1) {
      text += fmt::format(", on {} streams in turns", communication.communicators);
    }
    if (communication.reduce_dtype) {
      text += fmt::format(", rounded to {} at {:.4g} times their size",
                          graph::name_of(*communication.reduce_dtype), communication.reduce_scale);
    }
    if (communication.clip_first) {
      text +=
          "; each data rank clips its own gradient first, after its last microbatch: not what "
          "one device does";
    }
    for (const auto& name : gathered) {
      text +=
          fmt::format("{}{}", &name == &gathered.front() ? "; gathered from rows: " : ", ", name);
    }
    return text;
  }
};

}  // namespace

std::shared_ptr<const Method> grad_comm() { return std::make_shared<GradComm>(); }

}  // namespace perigee::methods
