#include "cuda/nccl/by_host.h"

#include <ATen/ATen.h>

#include <map>

namespace perigee::cuda {
namespace {

using exec::Transfer;

class HostWork : public exec::Work {
 public:
  HostWork(std::shared_ptr<exec::Work> inner, at::Tensor received, Transfer transfer)
      : inner_(std::move(inner)), received_(std::move(received)), transfer_(std::move(transfer)) {}

  void wait() override {
    inner_->wait();
    began = inner_->began;
    ended = inner_->ended;
    if (received_.defined()) transfer_.output.copy_(received_);
    if (transfer_.unpack) transfer_.unpack();
  }

 private:
  std::shared_ptr<exec::Work> inner_;
  at::Tensor received_;
  Transfer transfer_;
};

class HostGroup : public exec::Group {
 public:
  explicit HostGroup(std::shared_ptr<exec::Group> inner)
      : Group(inner->name(), inner->ranks(), inner->rank()), inner_(std::move(inner)) {}

  std::shared_ptr<exec::Work> transfer(Transfer t) override {
    if (t.pack) t.pack();
    Transfer on_host = t;
    on_host.pack = on_host.unpack = nullptr;
    if (t.input.defined()) on_host.input = t.input.to(at::kCPU, false, /*copy=*/true);
    if (t.output.defined()) {
      on_host.output = at::empty(t.output.sizes(), t.output.options().device(at::kCPU));
    }
    if (t.workspace.defined()) {
      on_host.workspace = at::empty(t.workspace.sizes(), t.workspace.options().device(at::kCPU));
    }
    auto received = on_host.output;
    auto work = inner_->transfer(std::move(on_host));
    return std::make_shared<HostWork>(std::move(work), std::move(received), std::move(t));
  }

  void connect_pairs(const std::vector<Pair>& pairs) override { inner_->connect_pairs(pairs); }

 private:
  std::shared_ptr<exec::Group> inner_;
};

class HostCommunicator : public exec::Communicator {
 public:
  explicit HostCommunicator(std::shared_ptr<exec::Communicator> inner) : inner_(std::move(inner)) {}

  int64_t rank() const override { return inner_->rank(); }
  int64_t world() const override { return inner_->world(); }
  std::shared_ptr<exec::Group> group(const std::string& name,
                                     const std::vector<int64_t>& ranks) override {
    auto inner = inner_->group(name, ranks);
    auto& group = groups_[{name, ranks}];
    if (!group) group = std::make_shared<HostGroup>(std::move(inner));
    return group;
  }
  void check() override { inner_->check(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  bool restore() override { return inner_->restore(); }

 private:
  std::shared_ptr<exec::Communicator> inner_;
  std::map<std::pair<std::string, std::vector<int64_t>>, std::shared_ptr<HostGroup>> groups_;
};

}  // namespace

std::unique_ptr<exec::Communicator> by_host_communicator(
    std::shared_ptr<exec::Communicator> inner) {
  return std::make_unique<HostCommunicator>(std::move(inner));
}

}  // namespace perigee::cuda
