// Lines that a strategy script prints, which go to the log once, however often its function
// is called.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee::train {

class ScriptOutput {
 public:
  // Writes the line to the log, or keeps it while a Held lives.
  void print(std::string_view line);

  // Keeps lines until it ends, and then writes them.
  class Held {
   public:
    explicit Held(ScriptOutput* output);  // nullptr: keeps nothing
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    // Forgets the kept lines: the function is called again.
    void forget();

   private:
    ScriptOutput* output_;
  };

 private:
  bool held_ = false;
  std::vector<std::string> lines_;
};

}  // namespace perigee::train
