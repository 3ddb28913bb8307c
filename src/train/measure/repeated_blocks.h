// Repeated blocks of a program, and a shortened program that leaves most of them out: measuring its
// distinct ops and collectives takes as long for many layers as for few.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "mesh/mesh.h"

namespace perigee::train {

struct RepeatedBlocks {
  // Blocks ("blocks.0") of rows of identical blocks, and how many each represents; 0: left out.
  std::map<std::string, double, std::less<>> represents;
  // Buckets and units of left-out blocks that stay, since no other has their sizes.
  std::set<std::string, std::less<>> kept;

  // Returns the number of blocks that are left out.
  int64_t left_out() const;
};

// Finds the identical blocks of all ranks' programs: those with the same ops, one by one, in the
// same sections of the same programs. Of more than four the first three and the last stay; the
// second and third represent those left out. Nothing is left out where the ranks of a group would
// not all start the same collectives, nor with interleaved microbatches (plan::Overlap::experts),
// which cut sections within blocks.
RepeatedBlocks find_repeated_blocks(const compile::Programs& programs, const mesh::Mesh& mesh);

struct ShortProgram {
  compile::Program program;
  // By section and instruction: how many of the whole program it represents; 0: an op that the
  // whole program does not have.
  std::vector<std::vector<double>> represents;
};

// Leaves blocks out of one rank's program; every distinct op stays. Values of a left-out block that
// later blocks read are copies of those of a block that stays. In place of the blocks as much
// memory as they used is touched, up to the size of caches, so that later ops find the caches as in
// a whole step.
ShortProgram shorten(compile::Program program, const RepeatedBlocks& repeats);

}  // namespace perigee::train
