// The one owner of a lua_State: limits, protected calls, and the sandbox that scripts see
// (runtime/strategies.md). The sandbox protects from mistakes and nondeterminism; it does not
// claim to hold a hostile script.
#pragma once

#include <chrono>
#include <functional>
#include <lua.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perigee::methods {
class Method;
}

namespace perigee::lua {

class Planner;

struct Limits {
  double seconds = 5;       // of running Lua; host calls are not counted
  int64_t megabytes = 256;  // of Lua memory
};

struct Options {
  Limits limits;
  uint64_t seed = 0;  // of math.random
  std::string
      runtime_folder;  // where `require "perigee.x"` finds modules written in Lua; "" for none.
                       // Methods that the strategies beside it define can be used by name
  // Pushes a further module that scripts can require, or returns false; none: there is none.
  std::function<bool(lua_State*, std::string_view)> module;
  std::function<void(std::string_view)> print;  // receives what scripts print; none: the log
};

// One Lua state, used by one thread at a time. Every error leaves as perigee::Error with the script's file
// and line.
class State {
 public:
  explicit State(Options options = {});
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Runs a script and leaves its one result on the stack (nil for none). Scripts beside it
  // can be required.
  void run_file(const std::string& path);
  void run_text(std::string_view text, std::string_view name);

  // Calls the function below `arguments` values on the stack, protected; leaves one result.
  void call(int arguments);

  lua_State* raw() const { return L_; }
  const Options& options() const { return options_; }
  // Returns the folder of the script that runs, for `require` and for paths in the script.
  const std::string& script_folder() const { return script_folder_; }

  // Returns the state that owns L.
  static State& of(lua_State* L);

  // Methods that scripts of this state defined, in order; they call back into it and must not
  // outlive it.
  std::vector<std::shared_ptr<const methods::Method>> methods;

  // Answers perigee.solver.plan and perigee.profiler while a strategy function runs; nullptr: there
  // is no job.
  Planner* planner = nullptr;

  // The job of the strategy that was resolved last, as a strategy function sees it; nullptr: none.
  std::shared_ptr<const nlohmann::json> job;

  // Why the last search found no solution ("": it found one). A script that fails with this text
  // fails with the search's Status::infeasible.
  std::string infeasible;

  // Sharding rules that scripts of this state gave, by op.
  std::map<std::string, std::string> rules;

  // The user's place of the code that the host runs now, "FILE:LINE: ", for errors without a line
  // of the user's; "": none.
  std::string place;
  // While a shipped strategy runs for the methods that it defines, which others use.
  bool defines_shipped = false;
  // Where the table that the script returned last begins, or ""; of chunks run by the host.
  std::string result_place;

  // The functions that the host runs, innermost last, added by Entered: after a tail call no
  // other trace of the function that made it is left. `caller` is the C function that runs all
  // but the first.
  struct Begin {
    std::string source;  // "@file"
    int line = 0;        // its first; 0: it is the whole file
  };
  std::vector<Begin> functions;
  lua_CFunction caller = nullptr;
  // Pushes the function that `functions` has at this place.
  static void push_function(lua_State* L, size_t at);

  // While one lives, the function at `index` is the innermost that the host runs.
  class Entered {
   public:
    Entered(State& state, lua_State* L, int index);
    ~Entered() { state_.functions.pop_back(); }

   private:
    State& state_;
  };

  // True once the time or the memory is used up: no pcall may hold such an error.
  bool exhausted() const { return expired_ || out_of_memory_; }

  // While one lives, the script's clock stands still, but while the host calls into the script.
  class HostTime {
   public:
    explicit HostTime(State& state) : state_(state), outer_(std::exchange(state.host_, this)) {}
    ~HostTime() {
      stop();
      state_.host_ = outer_;
    }

   private:
    friend class State;
    using Clock = std::chrono::steady_clock;
    void start() { begin_ = Clock::now(); }
    void stop() { state_.deadline_ += Clock::now() - begin_; }

    State& state_;
    HostTime* outer_;
    Clock::time_point begin_ = Clock::now();
  };

 private:
  friend int require_module(lua_State* L);
  static void* allocate(void* self, void* block, size_t old_size, size_t new_size);
  static void watch(lua_State* L, lua_Debug* event);
  static int add_traceback(lua_State* L);
  void load(std::string_view text, std::string_view name);

  Options options_;
  std::string script_folder_, script_name_;
  std::string traceback_;
  int64_t used_ = 0;
  int depth_ = 0;
  bool expired_ = false;
  bool out_of_memory_ = false;
  HostTime* host_ = nullptr;  // the innermost that lives
  std::chrono::steady_clock::time_point deadline_;
  lua_State* L_ = nullptr;
};

}  // namespace perigee::lua
