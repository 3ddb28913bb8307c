// The arguments of ops that draw random numbers: `key`, and after sharding `global`, `begin`,
// `batch_dim` and `batch_run`.
#pragma once

#include "exec/ops/op.h"
#include "exec/ops/random.h"

namespace perigee::exec {

// These arguments, read once per op.
struct RandomArguments {
  int64_t key = 0;
  std::vector<int64_t> local, global, begin;
  int64_t batch_dim = 0, batch_run = 0;

  // `local`: the shape of the drawn numbers. Throws Error as Arguments does.
  RandomArguments(const Arguments& arguments, std::vector<int64_t> local,
                  std::string_view key_name = "key")
      : key(arguments.integer(key_name, 0)),
        local(std::move(local)),
        global(arguments.integers("global")),
        begin(arguments.integers("begin")),
        batch_dim(arguments.integer("batch_dim", 0)),
        batch_run(arguments.integer("batch_run", 0)) {}

  RandomStream stream(const Draw& draw) const {
    return {draw.seed, static_cast<uint32_t>(key), static_cast<uint32_t>(draw.step),
            draw.step_in_memory};
  }
  RandomBlock block(const Draw& draw) const {
    return {local, global, begin, batch_dim, draw, batch_run};
  }
};

// Reads kind and parameters of `perigee::random`. Throws Error for an unknown kind.
Distribution distribution_of(const Arguments& arguments);

}  // namespace perigee::exec
