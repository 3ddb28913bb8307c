// The solver's problems as JSON (solve/problem.h).
#include "solve/problem.h"
#include "tests/fuzz/target.h"

PERIGEE_FUZZ_TARGET(problem) { perigee::solve::parse_problem(input); }
