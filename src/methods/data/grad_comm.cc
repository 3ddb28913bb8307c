// grad_comm: how gradients are reduced over the batch's axes.
#include <algorithm>

#include "base/fail.h"
#include "base/text/bytes.h"
#include "methods/field_table.h"
#include "methods/precision/low_precision.h"

namespace perigee::methods {
namespace {

enum class Reduction : unsigned char { mean, sum };
enum class Clipping : unsigned char { after, before };
enum class SparseGradients : unsigned char { dense, gathered, any };

struct GradCommConfig {
  double bucket_mb = plan::Communication{}.bucket_bytes / kMiB;
  std::optional<int64_t> buckets;
  bool overlap = plan::Communication{}.overlap;
  int64_t communicators = plan::Communication{}.communicators;
  std::optional<std::string> dtype;
  std::optional<double> scale;
  Reduction reduce = Reduction::mean;
  Clipping clip = Clipping::after;
  SparseGradients sparse = SparseGradients::dense;

  static constexpr double kMiB = 1 << 20;
};

class GradComm : public MethodWith<GradCommConfig> {
 public:
  std::string_view name() const override { return "grad_comm"; }
  std::string_view doc() const override {
    return "How gradients are reduced: in which buckets and on how many streams, in which "
           "precision, as a mean or a sum, and before or after clipping.";
  }

 protected:
  const FieldTable<GradCommConfig>& table() const override {
    using C = GradCommConfig;
    static const FieldTable<C> table(
        {{.name = "bucket_mb",
          .member = &C::bucket_mb,
          .above = 0,
          .below = 1e6,
          .doc = "smallest size of a bucket in MiB"},
         {.name = "buckets",
          .member = &C::buckets,
          .otherwise = "any number",
          .at_least = 1,
          .at_most = 1e6,
          .doc = "the most buckets of gradients with the same type and axes, which then grow "
                 "above bucket_mb"},
         {.name = "overlap",
          .member = &C::overlap,
          .doc = "start a bucket as soon as its last gradient is complete"},
         {.name = "communicators",
          .member = &C::communicators,
          .at_least = 1,
          .at_most = 64,
          .doc = "streams over the data axis, among which buckets alternate"},
         {.name = "dtype",
          .member = &C::dtype,
          .otherwise = "the gradients' own type",
          .allowed = low_dtype_names(),
          .doc = "gradients are rounded to this type and reduced in it"},
         {.name = "scale",
          .member = &C::scale,
          .otherwise = "128 with fp16, 1 with bf16",
          .above = 0,
          .below = 1e30,
          .doc = "with dtype: gradients are multiplied by it before they are rounded, and divided "
                 "by it after the reduction"},
         {.name = "reduce",
          .member = &C::reduce,
          .allowed = {"mean", "sum"},
          .doc = "gradients are averaged or summed over data ranks and microbatches"},
         {.name = "clip",
          .member = &C::clip,
          .allowed = {"after", "before"},
          .doc = "after the reduction, or before: each data rank clips the gradient of its own "
                 "samples, which is not the result of one device"},
         {.name = "sparse",
          .member = &C::sparse,
          .allowed = {"dense", "gathered", "any"},
          .doc = "gradients of embeddings: dense ones are all-reduced; gathered ones are computed "
                 "from the indices and rows of all ranks, gathered in every microbatch; any: "
                 "gathered where the model has such gradients"}});
    return table;
  }

  void edit(plan::Plan& plan, const GradCommConfig& given, const Config&,
            const PlanRequest& request) const override {
    auto& communication = plan.communication;
    communication.bucket_bytes = static_cast<int64_t>(given.bucket_mb * GradCommConfig::kMiB);
    communication.buckets = given.buckets.value_or(communication.buckets);
    communication.communicators = given.communicators;
    communication.overlap = given.overlap;
    if (given.dtype) {
      communication.reduce_dtype = dtype_named(*given.dtype);
      communication.reduce_scale = communication.reduce_dtype == graph::DType::float16 ? 128 : 1;
    }
    if (given.scale) {
      if (!communication.reduce_dtype) {
        fail("grad_comm", "scale {} requires a dtype, but there is none", *given.scale);
      }
      communication.reduce_scale = *given.scale;
    }
    communication.sum = given.reduce == Reduction::sum;
    communication.clip_first = given.clip == Clipping::before;
    const auto gathered = given.sparse == SparseGradients::dense
                              ? std::vector<std::string>()
                              : gather_embeddings(plan, *request.graph,
                                                  given.sparse == SparseGradients::gathered);
    plan.decisions.push_back({"grad_comm", sentence(plan, gathered)});
  }

 private:
  // Replicates the rows of embeddings' gradients, and so these gradients, over the batch's axes.
  // Returns the parameters. Throws Error where there are none although one is `needed`.
  static std::vector<std::string> gather_embeddings(plan::Plan& plan, const graph::Graph& graph,
                                                    bool needed) {
    const auto names = graph::value_names(graph);
    const auto batch = plan.batch_axes;
    const auto pin = [&](graph::ValueId v) {
      auto& placements = plan.placements[names[v.index]];
      placements.resize(plan.mesh.axes.size(), mesh::Placement::open());
      for (size_t a = 0; a < placements.size(); ++a) {
        if (std::find(batch.begin(), batch.end(), plan.mesh.axes[a].name) != batch.end()) {
          placements[a] = mesh::Placement::replicate();
        }
      }
    };
    // Indices that do not depend on the data, as positions, are the same on all ranks.
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
           "sparse = \"gathered\" requires a gradient of an embedding alone, but the model has "
           "none: the gradient of a weight that is also the head is dense; leave sparse out");
    }
    return gathered;
  }

  static std::string sentence(const plan::Plan& plan, const std::vector<std::string>& gathered) {
    const auto& communication = plan.communication;
    auto text = fmt::format(
        "gradients are {} in buckets of at least {}{}, {}",
        communication.sum ? "summed over data ranks and microbatches" : "reduced",
        bytes_text(static_cast<double>(communication.bucket_bytes)),
        communication.buckets > 0 ? fmt::format(" (at most {})", communication.buckets) : "",
        communication.overlap ? "each as soon as it is complete" : "all after the backward pass");
    if (communication.communicators > 1) {
      text += fmt::format(", alternating over {} streams", communication.communicators);
    }
    if (communication.reduce_dtype) {
      text += fmt::format(", multiplied by {1:.4g} and rounded to {0}",
                          graph::name_of(*communication.reduce_dtype), communication.reduce_scale);
    }
    if (communication.clip_first) {
      text +=
          "; each data rank clips its own gradient before the reduction: not the result of one "
          "device";
    }
    for (const auto& name : gathered) {
      text += fmt::format("{}{}", &name == &gathered.front() ? "; gathered from rows: " : ", ",
                          name);
    }
    return text;
  }
};

}  // namespace

std::shared_ptr<const Method> grad_comm() { return std::make_shared<GradComm>(); }

}  // namespace perigee::methods
