// Which hosts take part in a round of a job whose hosts come and go: decisions without a network or
// a clock. The keeper (keeper.h) carries them out.
//
// A host registers for a round and waits. A round is formed when all hosts have come that the job
// may have; when enough have come and the others are late; or, after a round, when its hosts are
// back. While a round runs, a host that registers waits until the others have saved a checkpoint
// and register for the next round, too.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace perigee::command {

using Time = std::chrono::steady_clock::time_point;

// How a host's last round ended there.
struct Outcome {
  enum class Kind {
    fresh,   // it has not trained yet
    failed,  // a rank failed, or lost ranks of other hosts
    saved,   // all ranks stopped after a checkpoint, for the next round
    final    // the job ends on all hosts, with `status`
  };
  Kind kind = Kind::fresh;
  int status = 0;
  std::string cause;        // a sentence without a host's name
  bool lost_peers = false;  // the cause is another host's
};

struct Registration {
  std::string id;          // of the launcher's process
  int64_t attempt = 0;     // counts the process's registrations
  std::string name;        // of the host, in messages
  int64_t ranks = 1;       // on the host
  int64_t node_rank = -1;  // the user's, or -1
  std::string address;     // where the host listens for the ranks of a round, should it have rank 0
  int port = 0;
  bool trained = false;  // it took part in a round, perhaps of another keeper
  int64_t restarts = 0;  // of the job, as the host knows
  std::string job;       // Verdict::job, as the host knows; "" before its first round
  Outcome outcome;
};

// The answer to a registration.
struct Verdict {
  bool end = false;
  // With `end`: the job is over for this host.
  int status = 0;
  std::string text;   // why
  bool mine = false;  // the reason is the outcome that this host has reported
  // Without: the round.
  int64_t round = 0;
  int64_t node = 0, nodes = 1;  // the host's number among them
  std::string host;             // of rank 0's store
  int port = 0;
  int64_t restarts = 0;  // of the job
  std::string job;       // its random id, the same in all rounds
  bool again = false;    // the job has trained before: it goes on from its newest checkpoint
  std::string note;      // for the log; "" at the job's start
};

struct Answer {
  std::string id;  // of the registration
  int64_t attempt = 0;
  Verdict verdict;
};

// An order to the ranks of a round.
enum class Stop {
  save,  // stop after the running step and a checkpoint
  over   // end at once
};

struct StopOrder {
  int64_t round = 0;
  Stop stop = Stop::save;
};

struct MembershipOptions {
  int64_t least = 1, most = 1;  // hosts
  int64_t ranks = 1;            // on each
  int64_t max_restarts = 0;
  double backoff_seconds = 1;
  std::chrono::milliseconds timeout{60'000};    // for `least` hosts to come
  std::chrono::milliseconds last_call{30'000};  // for more of them, before the first round
  std::chrono::milliseconds grace{2000};        // for the hosts of a round to come back
};

class Membership {
 public:
  explicit Membership(MembershipOptions options) : options_(options) {}

  void add(Registration registration, Time now);

  // Returns the answers that are due.
  std::vector<Answer> decide(Time now);

  // All orders so far, oldest first.
  const std::vector<StopOrder>& orders() const { return orders_; }
  bool formed() const { return round_ > 0; }  // a round

  bool ended() const { return ended_.has_value(); }
  // Returns whether the job has ended and every host has its answer.
  bool done() const { return ended_ && absent() == 0 && waiting_.empty(); }

 private:
  struct Member {
    std::string id, name;
    bool back = false;  // it has registered again
  };

  bool all_back() const { return !members_.empty() && absent() == 0; }
  int64_t absent() const;
  const Member* member(const std::string& id) const;
  void order(Stop stop);
  // Ends the job: `from` is the host whose outcome is the reason, or "".
  void end(int status, std::string text, const std::string& from = "");
  void refuse(Registration registration, std::string text);
  bool ready(Time now);
  // Counts a failure of ranks. Returns whether the job may go on.
  bool count_failure(Time now);
  void form(std::vector<Answer>& answers);
  // Returns the host of the last round whose outcome is the cause of its end, or nullptr.
  const Registration* failed() const;
  std::string note() const;

  const MembershipOptions options_;
  std::vector<Registration> waiting_;
  std::vector<Member> members_;  // of the last round
  std::vector<StopOrder> orders_;
  std::vector<Answer> refusals_;
  std::optional<Time> began_;       // the gathering
  std::optional<Time> not_before_;  // the backoff's end
  struct End {
    int status;
    std::string text, from;
  };
  std::optional<End> ended_;
  int64_t round_ = 0, restarts_ = 0;
  std::string job_;  // "": no host has trained
  bool trained_ = false;
};

// Messages between hosts, as JSON in one line. Parsing throws Error (Status::failed).
std::string print(const Registration& registration);
std::string print(const Verdict& verdict);
Registration parse_registration(const std::string& text);
Verdict parse_verdict(const std::string& text);

}  // namespace perigee::command
