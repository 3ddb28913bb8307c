// Pieces of canonical form that several tables use.
#pragma once

#include "capture/record/op.h"
#include "capture/record/session.h"

namespace perigee::tracing {

// Returns the value of an operand. A number that LibTorch wrapped as a CPU tensor becomes
// perigee::full, with the dtype it takes in this call.
graph::ValueId operand(Session& session, const Recorded& call, const at::Tensor& tensor);

// Returns the type of the first result.
graph::TensorType result_type(const Recorded& call);

// Returns the number as bool, int64 or double, whichever the dtype calls for.
graph::Arg number_for(graph::DType dtype, const at::Scalar& number);

// Returns a number, a tensor without dims, of a complex dtype.
graph::ValueId complex_number(Session& session, graph::DType dtype, c10::complex<double> number);

// Returns `self` reshaped; a reshape of a reshape is one, and one to the same shape is none.
graph::ValueId reshaped(Session& session, graph::ValueId self, const std::vector<int64_t>& shape);

// Returns `self` converted and broadcast to the type.
graph::ValueId converted(Session& session, graph::ValueId self, const graph::TensorType& type);

}  // namespace perigee::tracing
