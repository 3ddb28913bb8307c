// Commands that need no model: mesh, schedule, lua.
#include <memory>

#include "base/fail.h"
#include "command.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/state.h"
#include "mesh/mesh.h"
#include "mesh/report.h"
#include "schedule/schedule.h"

namespace perigee::command {
namespace {

struct MeshOptions {
  std::string axes, order;
  std::vector<std::string> groups;
  OutputOptions output;
};

int run_mesh(const MeshOptions& options) {
  auto mesh = mesh::parse_axes(options.axes);
  if (!options.order.empty()) mesh.order = mesh::parse_order(options.order);
  mesh::verify(mesh);
  write_result(options.output, options.output.json ? mesh::to_json(mesh, options.groups)
                                                   : mesh::to_text(mesh, options.groups));
  return 0;
}

void add_mesh(CLI::App& app, Action& action) {
  auto options = std::make_shared<MeshOptions>();
  auto* sub = add_command(app, "mesh", "print the groups of a mesh",
                          {"perigee mesh tensor=2,pipe=2,data=2",
                           "perigee mesh data=2,context=2 --group data,context --json"});
  sub->add_option("AXES", options->axes, "tensor=2,pipe=2,data=2; the first axis varies fastest")
      ->required();
  sub->add_option("--order", options->order, "the ranks to use: 0,4,1,5,...");
  add_texts(*sub, "--group", options->groups,
            "also print the groups over several axes: data,context");
  add_output_options(*sub, options->output);
  sub->callback([options, &action] { action = [options] { return run_mesh(*options); }; });
}

void add_schedule(CLI::App& app, Action& action) {
  struct Options {
    ScheduleOptions schedule;
    OutputOptions output;
  };
  auto options = std::make_shared<Options>();
  auto& schedule = options->schedule;
  auto* sub = add_command(
      app, "schedule", "print a pipeline schedule",
      {"perigee schedule 1f1b --stages 4 --microbatches 8",
       "perigee schedule zbv --stages 4 --microbatches 8 --memory-limit 4 --json"});
  sub->add_option("NAME", schedule.name, fmt::format("{}", fmt::join(schedule_names(), ", ")))
      ->required();
  add_integer(*sub, "--stages", schedule.stages, "pipeline stages")->required();
  add_integer(*sub, "--microbatches", schedule.microbatches, "microbatches of a step")->required();
  add_integer(*sub, "--chunks", schedule.chunks, "chunks per stage; default: the schedule's own");
  add_integer(*sub, "--group", schedule.group,
              "interleaved: microbatches per group; default: stages");
  add_integer(*sub, "--extra", schedule.extra,
              "1f1b: microbatches in flight beyond those of plain 1f1b");
  sub->add_flag(
      "--delay-weights", schedule.delay_weights,
      "for a schedule without split backward passes: delay weight gradients into its bubbles");
  sub->add_option("--forward", schedule.forward, "time of a stage's forward");
  sub->add_option("--backward", schedule.backward, "time of a stage's input gradient");
  sub->add_option("--wgrad", schedule.wgrad, "time of a stage's weight gradient");
  sub->add_option("--transfer", schedule.transfer, "time of a transfer between stages");
  sub->add_option("--memory-limit", schedule.memory_limit, "highest peak_in_flight on any stage");
  add_output_options(*sub, options->output);
  sub->callback([options, &action] {
    action = [options] {
      const auto result = make_schedule(options->schedule);
      write_result(options->output, options->output.json ? to_json(result) : to_text(result));
      return 0;
    };
  });
}

void add_lua(CLI::App& app, Action& action) {
  struct Options {
    std::string file;
    lua::Options state;
    bool types = false, reference = false;
    OutputOptions output;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(
      app, "lua", "run a Lua file in the sandbox, print what it returns as JSON",
      {"perigee lua strategies/data_parallel/ddp.lua", "perigee lua --types -o perigee.d.lua"});
  sub->add_option("FILE", options->file, "the script");
  sub->add_option("--script-seconds", options->state.limits.seconds,
                  "time limit of the script in seconds; default 5")
      ->check(positive());
  add_integer(*sub, "--script-megabytes", options->state.limits.megabytes,
              "memory limit of the script in MiB; default 256")
      ->check(positive());
  sub->add_flag("--types", options->types, "print the editor types of the API (LuaCATS) instead");
  sub->add_flag("--reference", options->reference, "print the reference page of the API instead");
  add_output_options(*sub, options->output);
  sub->callback([options, &action] {
    action = [options] {
      if (options->types || options->reference) {
        write_result(options->output, options->types ? lua::editor_types() : lua::reference_page());
        return 0;
      }
      if (options->file.empty()) fail("command", "perigee lua takes a FILE, but there is none");
      options->state.runtime_folder = shipped_folder("runtime");
      lua::State state(options->state);
      state.run_file(options->file);
      const auto value = lua::to_json(state.raw(), -1, "the result");
      write_result(options->output, value.dump(options->output.json ? -1 : 2, ' ', false,
                                               nlohmann::json::error_handler_t::replace) +
                                        "\n");
      return 0;
    };
  });
}

}  // namespace

CLI::App* add_command(CLI::App& app, const char* name, const char* about,
                      std::initializer_list<const char*> examples) {
  auto* sub = app.add_subcommand(name, about);
  std::string text = "Examples:";
  for (const auto* example : examples) text += std::string("\n  ") + example;
  sub->footer(text);
  return sub;
}

CLI::Option* add_texts(CLI::App& app, const std::string& name, std::vector<std::string>& texts,
                       const std::string& about) {
  // With extra arguments CLI11 also takes the words that follow, and "[a,b]" for two texts.
  return app.add_option(name, texts, about)->expected(1)->allow_extra_args(false)->take_all();
}

void add_output_options(CLI::App& app, OutputOptions& options) {
  app.add_option("-o,--output", options.file, "write the result to this file");
  app.add_flag("--json", options.json, "print JSON, nothing else");
}

void add_core_commands(CLI::App& app, Action& action) {
  add_mesh(app, action);
  add_schedule(app, action);
  add_lua(app, action);
}

}  // namespace perigee::command
