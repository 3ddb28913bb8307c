// Numbers and texts that ranks exchange beside their programs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/comm/communicator.h"

namespace perigee::train {

// Returns the group of all ranks.
std::shared_ptr<exec::Group> everyone(exec::Communicator& communicator);

// Returns rank 0's text on every rank. All ranks call it.
std::string share_text(std::string text, exec::Group& group);

// Returns rank 0's number on every rank. All ranks call it.
double share_number(double number, exec::Group& group);

// Returns the texts of all ranks in the group's order. All ranks call it.
std::vector<std::string> gather_texts(const std::string& text, exec::Group& group);

// Returns once all ranks have called it.
void barrier(exec::Communicator& communicator);

}  // namespace perigee::train
