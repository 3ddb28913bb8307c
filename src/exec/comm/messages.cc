#include "exec/comm/messages.h"

#include <map>
#include <utility>

namespace perigee::exec {
namespace {

class MixedGroup : public Group {
 public:
  MixedGroup(std::shared_ptr<Group> collectives, std::shared_ptr<Group> messages)
      : Group(collectives->name(), collectives->ranks(), collectives->rank()),
        collectives_(std::move(collectives)),
        messages_(std::move(messages)) {}

  std::shared_ptr<Work> transfer(Transfer transfer) override {
    return carrier(transfer.kind).transfer(std::move(transfer));
  }

  bool recordable(Collective::Kind kind) const override { return carrier(kind).recordable(kind); }

  std::shared_ptr<std::byte> one_memory(int64_t bytes) override {
    return collectives_->one_memory(bytes);
  }

  std::shared_ptr<void> register_memory(CollectiveMemory memory) override {
    return collectives_->register_memory(std::move(memory));
  }

  void connect_pairs(const std::vector<Pair>& pairs) override { messages_->connect_pairs(pairs); }

 private:
  Group& carrier(Collective::Kind kind) const {
    const bool message = kind == Collective::Kind::send || kind == Collective::Kind::receive;
    return *(message ? messages_ : collectives_);
  }

  std::shared_ptr<Group> collectives_, messages_;
};

class MixedCommunicator : public Communicator {
 public:
  MixedCommunicator(std::shared_ptr<Communicator> collectives,
                    std::shared_ptr<Communicator> messages)
      : collectives_(std::move(collectives)), messages_(std::move(messages)) {}

  int64_t rank() const override { return collectives_->rank(); }
  int64_t world() const override { return collectives_->world(); }
  std::shared_ptr<Group> group(const std::string& name,
                               const std::vector<int64_t>& ranks) override {
    auto collectives = collectives_->group(name, ranks);
    auto messages = messages_->group(name, ranks);
    auto& group = groups_[{name, ranks}];
    if (!group) group = std::make_shared<MixedGroup>(std::move(collectives), std::move(messages));
    return group;
  }
  void check() override {
    collectives_->check();
    messages_->check();
  }
  void abort(const std::string& reason) override {
    collectives_->abort(reason);
    messages_->abort(reason);
  }

 private:
  std::shared_ptr<Communicator> collectives_, messages_;
  std::map<std::pair<std::string, std::vector<int64_t>>, std::shared_ptr<MixedGroup>> groups_;
};

}  // namespace

std::shared_ptr<Communicator> with_messages(std::shared_ptr<Communicator> collectives,
                                            std::shared_ptr<Communicator> messages) {
  return std::make_shared<MixedCommunicator>(std::move(collectives), std::move(messages));
}

}  // namespace perigee::exec
