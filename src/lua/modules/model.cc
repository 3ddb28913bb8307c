// perigee.torch and perigee.nn, which the script of a model (kind = "lua") can require. They are
// made elsewhere, by src/binding and runtime/perigee/nn.lua.
#include "lua/api.h"

namespace perigee::lua {
namespace {

constexpr const char* kTensorTypes = R"(
---A tensor of the model: it has a shape and a dtype, and no value while the model is captured. x:op(...) is
---torch.op(x, ...); x[i] is x:select(0, i); dims and indices count from 0.
---@class perigee.Tensor
---@field shape integer[]
---@field dtype string
---@field size fun(self: perigee.Tensor, dim: integer?): integer|integer[]
---@field dim fun(self: perigee.Tensor): integer
---@field numel fun(self: perigee.Tensor): number
---@field [string] fun(self: perigee.Tensor, ...): any
---@operator add(perigee.Tensor|number): perigee.Tensor
---@operator sub(perigee.Tensor|number): perigee.Tensor
---@operator mul(perigee.Tensor|number): perigee.Tensor
---@operator div(perigee.Tensor|number): perigee.Tensor
---@operator pow(perigee.Tensor|number): perigee.Tensor
---@operator mod(perigee.Tensor|number): perigee.Tensor
---@operator unm: perigee.Tensor

---A module: its fields that are modules, parameters and buffers have the names of torch.nn.
---@class perigee.Module
---@field training boolean
---@field named_parameters fun(self: perigee.Module): fun(): string, perigee.Tensor
---@field named_buffers fun(self: perigee.Module): fun(): string, perigee.Tensor
---@field [string] any
---@operator call: any
)";

Function row(std::string name, std::vector<Parameter> parameters, std::string returns,
             std::string doc) {
  return {std::move(name), std::move(parameters), std::move(returns), std::move(doc), nullptr};
}

Function layer(std::string name, std::vector<Parameter> parameters, std::string doc) {
  return row(std::move(name), std::move(parameters), "perigee.Module", std::move(doc));
}

}  // namespace

Module torch_module() {
  return {"perigee.torch",
          "For scripts of models: every op of LibTorch by its schema's name, torch.softmax(x, -1), "
          "torch.gelu(x, { approximate = \"tanh\" }). Arguments by position, a table of named ones "
          "last; lists are tables, dtypes strings, and nil is an omitted argument.",
          {row("tensor",
               {{"values", "any", "a number, or lists of lists of numbers"},
                {"options", "table?",
                 "dtype, such as \"float32\"; default: int64 for whole "
                 "numbers, else that of the model"}},
               "perigee.Tensor", "Returns a constant."),
           row("scope",
               {{"name", "string", "the scope below the one around it"},
                {"run", "function", "is called with the other arguments"}},
               "any", "Calls a function whose ops belong to a scope of that name."),
           row("no_grad", {{"run", "function", "is called with the other arguments"}}, "any",
               "Calls a function without recording gradients."),
           row("check",
               {{"condition", "any", "what must hold"},
                {"message", "string", "the error's text, \"RULE, but got VALUE\""}},
               "", "An error at the user's line where the condition is false or nil.")},
          kTensorTypes,
          true};
}

Module nn_module() {
  const Parameter inputs{"inputs", "integer", "features or channels of the input"};
  const Parameter outputs{"outputs", "integer", "features or channels of the output"};
  const Parameter shape{"shape", "any", "size of the last dim, or a list of the last ones"};
  const Parameter tensor{"tensor", "any", "its values"};
  const Parameter kernel{"kernel", "any", "size, or a list of one for each dim"};
  const Parameter options{"options", "table?",
                          "stride, padding, dilation, groups (default 1, 0, 1, 1), bias (true)"};
  const Parameter norm{"options", "table?", "eps (1e-5), momentum (0.1)"};
  return {
      "perigee.nn",
      "For scripts of models: layers with the shapes, defaults and first values of torch.nn, "
      "written in Lua (runtime/perigee/nn.lua). Options are a table, last.",
      {row("Module", {{"name", "string", "type of its scopes"}, {"base", "table?", "a class"}},
           "any",
           "Returns a class: its functions init(self, ...) and forward(self, ...) make and run it; "
           "fields that init sets are its children, parameters and buffers, in that order."),
       row("Parameter", {tensor, {"trained", "boolean?", "default true"}}, "perigee.Tensor",
           "Marks a tensor as a parameter of the module that gets it as a field."),
       row("Buffer", {tensor}, "perigee.Tensor",
           "Marks a tensor as a buffer: kept from step to step, not trained."),
       row("scope", {{"name", "string", "the scope"}, {"run", "function", "the function"}}, "any",
           "torch.scope."),
       row("no_grad", {{"run", "function", "the function"}}, "any", "torch.no_grad."),
       layer("Linear", {inputs, outputs, {"options", "table?", "bias (true)"}},
             "x times a weight [outputs, inputs] and a bias."),
       layer("Embedding", {{"count", "integer", "rows"}, {"width", "integer", "size of a row"}},
             "Rows of a weight by index."),
       layer("LayerNorm", {shape, {"options", "table?", "eps (1e-5), bias (true)"}},
             "Normalises the last dims."),
       layer("RMSNorm", {shape, {"options", "table?", "eps (1e-6)"}},
             "Divides by the root of the mean square of the last dims."),
       layer("GroupNorm",
             {{"groups", "integer", "they divide channels"},
              {"channels", "integer", "size of dim 1"},
              {"options", "table?", "eps (1e-5)"}},
             "Normalises groups of channels."),
       layer("Conv1d", {inputs, outputs, kernel, options}, "A convolution over one dim."),
       layer("Conv2d", {inputs, outputs, kernel, options}, "A convolution over two dims."),
       layer("BatchNorm1d", {{"channels", "integer", "size of dim 1"}, norm},
             "Normalises over the batch."),
       layer("BatchNorm2d", {{"channels", "integer", "size of dim 1"}, norm},
             "Normalises over the batch and two more dims."),
       layer("Dropout", {{"p", "number?", "probability, default 0.5"}},
             "Zeroes elements while training."),
       layer("Identity", {}, "Returns what it gets."),
       layer("ReLU", {}, "torch.relu."),
       layer("GELU", {}, "torch.gelu."),
       layer("SiLU", {}, "torch.silu."),
       layer("Tanh", {}, "torch.tanh."),
       layer("ModuleList", {{"modules", "table?", "a list of modules"}},
             "Modules 0, 1, ...: list:append(m), list:get(i), `for _, m in list:each() do`."),
       layer("Sequential", {{"modules", "table", "a list of modules"}},
             "A list in which each module gets what the one before it gave.")},
      R"(
---First values, in place, as torch.nn.init.
---@class perigee.nn.init
---@field normal_ fun(x: perigee.Tensor, mean: number?, std: number?): perigee.Tensor
---@field uniform_ fun(x: perigee.Tensor, from: number?, to: number?): perigee.Tensor
---@field constant_ fun(x: perigee.Tensor, value: number): perigee.Tensor
---@field zeros_ fun(x: perigee.Tensor): perigee.Tensor
---@field ones_ fun(x: perigee.Tensor): perigee.Tensor
---@field kaiming_normal_ fun(x: perigee.Tensor, options: table?): perigee.Tensor
---@field kaiming_uniform_ fun(x: perigee.Tensor, options: table?): perigee.Tensor
---@field xavier_normal_ fun(x: perigee.Tensor, gain: number?): perigee.Tensor
---@field xavier_uniform_ fun(x: perigee.Tensor, gain: number?): perigee.Tensor
)",
      true};
}

}  // namespace perigee::lua
