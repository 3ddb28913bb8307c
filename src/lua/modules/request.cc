// perigee.Request, perigee.Graph and the tables of a graph: what functions of a strategy read
// (../method/request.cc makes them).
#include "lua/api.h"

namespace perigee::lua {
namespace {

Module table(std::string name, std::string doc, std::vector<Parameter> fields) {
  return {.name = std::move(name),
          .doc = std::move(doc),
          .elsewhere = true,
          .is_class = true,
          .fields = std::move(fields)};
}

// Appends the fields of a tensor's type.
std::vector<Parameter> with_type(std::vector<Parameter> fields) {
  const std::vector<Parameter> type = {{"shape", "integer[]", "of the global microbatch"},
                                       {"dtype", "string", "`float32`, ..."},
                                       {"bytes", "integer", "of the whole tensor"}};
  fields.insert(fields.end(), type.begin(), type.end());
  return fields;
}

}  // namespace

std::vector<Module> request_classes() {
  return {
      table("perigee.Request", "The job, as the functions of a defined method see it.",
            {{"global_batch", "integer", "samples of an optimizer step"},
             {"micro_batch", "integer", "samples of a microbatch on a data rank; 0: open"},
             {"world", "integer", "number of ranks"},
             {"mesh", "any[]", "the mesh's axes, a list of {name, size}"},
             {"frozen", "string[]", "patterns of parameters that the job does not train"},
             {"graph", "perigee.Graph", "the captured model; described when it is first read"},
             {"job", "perigee.Job?",
              "the resolved job, by section; absent for plans that are made without a job"}}),
      table("perigee.Graph",
            "The captured step of one global microbatch, as strategy functions and request.graph "
            "have it.",
            {{"scopes", "perigee.Scope[]", "the modules, outer ones first"},
             {"parameters", "perigee.Parameter[]", "in the model's order"},
             {"inputs", "perigee.Input[]", "the tensors of a batch, buffers and constants"},
             {"ops", "perigee.Op[]", "forward and backward pass, in an order of data flow"},
             {"outputs", "perigee.Output[]", "loss, gradients, new buffers, results"}}),
      table("perigee.Scope", "A module of the model.",
            {{"path", "string", "`blocks.0.attn`"}, {"type", "string", "`Attention`"}}),
      table("perigee.Parameter", "A parameter.",
            with_type({{"name", "string", "`blocks.0.attn.qkv.weight`"},
                       {"trainable", "boolean", "whether it has a gradient"}})),
      table("perigee.Input", "An input other than a parameter.",
            with_type({{"name", "string", "its own name"},
                       {"kind", "string", "`data`, `buffer` or `constant`"}})),
      table("perigee.Op", "An op. Its type is that of its first result.",
            with_type({{"name", "string", "of its first result; plan:pin takes it"},
                       {"op", "string", "`aten::mm`"},
                       {"scope", "string", "the module that it belongs to"},
                       {"backward", "boolean", "whether it is in the backward pass"},
                       {"flops", "number", "a multiplication and an addition count as two"},
                       {"inputs", "string[]",
                        "names of the values that it reads, in the order of its operands: results "
                        "of ops, parameters and inputs"},
                       {"outputs", "string[]", "names of its results"}})),
      table("perigee.OpTime", "All runs of an op of one scope and pass in a step.",
            {{"scope", "string", "the module, as in perigee.Op"},
             {"backward", "boolean", "whether it is in the backward pass"},
             {"op", "string", "`aten::mm`, `comm::all_reduce`, `load`"},
             {"stream", "string?", "of collectives: the axes and the communicator"},
             {"runs", "integer", "in all microbatches"},
             {"seconds", "number", "of all runs, without contention"},
             {"flops", "number", "of all runs"},
             {"bytes", "number", "read and written, or sent"},
             {"measured_share", "number", "share of seconds that was measured; 0: estimated"}}),
      table("perigee.Output", "A value that the step returns.",
            {{"kind", "string", "`loss`, `gradient`, `buffer` or `result`"},
             {"name", "string", "of a gradient: its parameter"},
             {"value", "string", "the value's name"}})};
}

}  // namespace perigee::lua
