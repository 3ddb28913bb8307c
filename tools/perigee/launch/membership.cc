#include "membership.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "restarts.h"

namespace perigee::command {

int64_t Membership::absent() const {
  return std::ranges::count_if(members_, [](const Member& one) { return !one.back; });
}

const Membership::Member* Membership::member(const std::string& id) const {
  const auto found = std::ranges::find(members_, id, &Member::id);
  return found == members_.end() ? nullptr : &*found;
}

void Membership::order(Stop stop) {
  if (round_ == 0) return;
  if (!orders_.empty() && orders_.back().round == round_ && orders_.back().stop >= stop) return;
  orders_.push_back({round_, stop});
}

void Membership::end(int status, std::string text, const std::string& from) {
  if (!ended_) ended_ = {status, std::move(text), from};
}

void Membership::refuse(Registration one, std::string text) {
  if (round_ > 0 || trained_) {
    refusals_.push_back({one.id, one.attempt, {.end = true, .status = 2, .text = std::move(text)}});
    return;
  }
  // Nobody has trained: the user corrects the command on all hosts.
  end(2, std::move(text));
  waiting_.push_back(std::move(one));
}

void Membership::add(Registration one, Time now) {
  restarts_ = std::max(restarts_, one.restarts);
  trained_ = trained_ || one.trained;
  if (job_.empty()) job_ = one.job;
  for (auto& known : members_) known.back = known.back || known.id == one.id;
  std::erase_if(waiting_, [&](const Registration& other) { return other.id == one.id; });
  if (one.ranks != options_.ranks) {
    auto text = fmt::format(
        "[launch] all hosts must have as many ranks (--nproc), but {} has {} and the others {}",
        one.name, one.ranks, options_.ranks);
    return refuse(std::move(one), std::move(text));
  }
  if (one.node_rank >= 0) {  // a host that died while it waited comes back as another process
    const auto same = std::ranges::find(waiting_, one.node_rank, &Registration::node_rank);
    if (same != waiting_.end()) {
      refusals_.push_back(
          {same->id,
           same->attempt,
           {.end = true,
            .status = 2,
            .text = fmt::format("[launch] each host must have a --node-rank of its own, but "
                                "another has {}, too",
                                one.node_rank)}});
      waiting_.erase(same);
    }
  }
  const auto& outcome = one.outcome;
  if (outcome.kind == Outcome::Kind::final) {
    end(outcome.status, fmt::format("host {}: {}", one.name, outcome.cause), one.id);
    if (outcome.status != 0) order(Stop::over);
  }
  if (outcome.kind == Outcome::Kind::failed && member(one.id)) order(Stop::over);
  if (!began_ && (round_ == 0 || member(one.id))) began_ = now;
  waiting_.push_back(std::move(one));
}

const Registration* Membership::failed() const {
  const Registration* found = nullptr;
  for (const auto& one : waiting_) {
    // A host that another keeper had lost is no failure of this round.
    if (one.outcome.kind != Outcome::Kind::failed || !member(one.id)) continue;
    if (!found || (found->outcome.lost_peers && !one.outcome.lost_peers)) found = &one;
  }
  return found;
}

bool Membership::count_failure(Time now) {
  const auto* first = failed();
  if (not_before_ || !first || !all_back())
    return true;  // a round without its lost hosts is no restart
  if (restarts_ >= options_.max_restarts) {
    end(first->outcome.status, fmt::format("host {}: {}", first->name, first->outcome.cause),
        first->id);
    return false;
  }
  not_before_ = now + backoff(options_.backoff_seconds, ++restarts_);
  return true;
}

bool Membership::ready(Time now) {
  if (!began_) return false;
  const auto count = std::ssize(waiting_);
  const auto late = now - *began_;
  const bool enough = count >= options_.least;
  if (!(round_ == 0 ? count >= options_.most : enough && all_back())) {
    if (late < (round_ == 0 && !trained_ ? options_.last_call : options_.grace)) return false;
    order(Stop::over);
    if (!enough) {
      if (late < options_.timeout) return false;
      std::vector<std::string> names;
      for (const auto& one : waiting_) names.push_back(one.name);
      end(1, fmt::format(
                 "[launch] {} hosts must come within {} s, but {} did: {}; start the others, all "
                 "with the same --nodes and --max-restarts",
                 options_.least, std::chrono::duration<double>(options_.timeout).count(), count,
                 fmt::join(names, ", ")));
      return false;
    }
  }
  return count_failure(now) && (!not_before_ || now >= *not_before_);
}

std::string Membership::note() const {
  if (round_ == 0 && !trained_) return "";
  std::vector<std::string> parts;
  if (const auto* first = failed(); first && all_back()) {
    parts.push_back(fmt::format("host {}: {}: restart {} of {}", first->name, first->outcome.cause,
                                restarts_, options_.max_restarts));
  }
  for (const auto& one : members_) {
    if (!one.back) parts.push_back(fmt::format("host {} does not answer", one.name));
  }
  for (const auto& one : waiting_) {
    if (!member(one.id) && round_ > 0) parts.push_back(fmt::format("host {} joins", one.name));
  }
  const auto count = std::min<int64_t>(options_.most, std::ssize(waiting_));
  parts.push_back(fmt::format("the job goes on from its newest checkpoint on {} host{}", count,
                              count == 1 ? "" : "s"));
  return fmt::format("{}", fmt::join(parts, "; "));
}

void Membership::form(std::vector<Answer>& answers) {
  order(Stop::over);  // for a host that was thought lost
  // The user's numbers, then the order of the last round, then that of arrival.
  const auto rank = [&](const Registration& one) {
    constexpr auto last = std::numeric_limits<int64_t>::max();
    const auto at = std::ranges::find(members_, one.id, &Member::id) - members_.begin();
    return std::pair(one.node_rank >= 0 ? one.node_rank : last, at);
  };
  const auto said = note();
  std::ranges::stable_sort(waiting_, {}, rank);
  const auto nodes = std::min<int64_t>(options_.most, std::ssize(waiting_));
  if (job_.empty()) job_ = waiting_.front().id;
  ++round_;
  members_.clear();
  for (int64_t node = 0; node < nodes; ++node) {
    const auto& one = waiting_[static_cast<size_t>(node)];
    members_.push_back({one.id, one.name, false});
    answers.push_back({one.id,
                       one.attempt,
                       {.round = round_,
                        .node = node,
                        .nodes = nodes,
                        .host = waiting_.front().address,
                        .port = waiting_.front().port,
                        .restarts = restarts_,
                        .job = job_,
                        .again = round_ > 1 || trained_,
                        .note = said}});
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + nodes);
  began_.reset();
  not_before_.reset();
}

std::vector<Answer> Membership::decide(Time now) {
  auto answers = std::exchange(refusals_, {});
  if (!ended_ && !waiting_.empty()) {
    const bool runs = round_ > 0 && absent() == std::ssize(members_);
    if (runs) {
      if (std::ssize(members_) < options_.most) order(Stop::save);
    } else if (ready(now)) {
      form(answers);
    }
  }
  if (ended_) {
    for (const auto& one : waiting_) {
      answers.push_back({one.id,
                         one.attempt,
                         {.end = true,
                          .status = ended_->status,
                          .text = ended_->text,
                          .mine = one.id == ended_->from}});
    }
    waiting_.clear();
  }
  return answers;
}

}  // namespace perigee::command
