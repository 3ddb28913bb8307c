// Blocks that repeat, and a step without most of them, to see what its ops and collectives take:
// what is measured is what is distinct, so that many layers cost what few do.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "mesh/mesh.h"

namespace perigee::train {

struct Repeats {
  // Blocks ("blocks.0") of rows of alike ones, by how many each stands for; 0: it is left out.
  std::map<std::string, double, std::less<>> stands_for;
  // Buckets and units of blocks that are left out, which are unlike those that stay.
  std::set<std::string, std::less<>> kept;

  int64_t left_out() const;
};

// Finds the blocks of all ranks' programs that are alike: those whose ops are, one by one, in the
// same sections of the same programs. Of more than four the first three and the last stay; those
// between stand for what is left out. Nothing is left out where the ranks of a group would not all
// start the same collectives, nor where microbatches run in turns (plan::Overlap::experts), which
// cuts sections within blocks.
Repeats find_repeats(const compile::Programs& programs, const mesh::Mesh& mesh);

struct Shortened {
  compile::Program program;
  // By section and instruction: how many it stands for; 0: an op that the program did not have.
  std::vector<std::vector<double>> stands_for;
};

// Leaves blocks out of one rank's program; every distinct op stays. What the next block reads of
// one that is left out is a copy of what one that stays had made. Where blocks were, so much memory
// as they used is touched, or as much as caches hold: so that what follows finds these as they are
// in a whole step.
Shortened leave_out(compile::Program program, const Repeats& repeats);

}  // namespace perigee::train
