// grad_comm: how gradients are reduced over the data axis.
#include "base/error.h"
#include "methods/method.h"

namespace perigee::methods {
namespace {

class GradComm : public Method {
 public:
  std::string_view name() const override { return "grad_comm"; }
  std::string_view doc() const override {
    return "How gradients are reduced: the size of a bucket, and whether a bucket starts while the "
           "backward pass runs.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"bucket_mb", "number", "smallest size of a bucket in MiB; default 25"},
        {"overlap", "boolean",
         "start a bucket as soon as its last gradient is there; default true"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request&) const override {
    auto& communication = plan.communication;
    if (config.fields.contains("bucket_mb")) {
      const auto size = config.fields["bucket_mb"].get<double>();
      if (!(size > 0 && size < 1e6))
        fail("grad_comm", "bucket_mb must be above 0 and below 1e6, but got {}", size);
      communication.bucket_bytes = static_cast<int64_t>(size * (1 << 20));
    }
    if (config.fields.contains("overlap"))
      communication.overlap = config.fields["overlap"].get<bool>();
    plan.decisions.push_back(
        {"grad_comm", fmt::format("gradients are reduced in buckets of at least {:.4g} MiB, {}",
                                  communication.bucket_bytes / double(1 << 20),
                                  communication.overlap ? "each as soon as it is complete"
                                                        : "all after the backward pass")});
  }
};

}  // namespace

std::shared_ptr<const Method> grad_comm() { return std::make_shared<GradComm>(); }

}  // namespace perigee::methods
