# The fuzzers of tests/fuzz (scripts/fuzz): clang's libFuzzer with the address and undefined-behaviour sanitizers. Everything that a
# parser needs is compiled with them, in libraries by folder, so that one target is built in minutes. Archives of torch.export need
# LibTorch, whose own code has no sanitizers.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  message(FATAL_ERROR "[build] fuzzers need clang, but the compiler is ${CMAKE_CXX_COMPILER}: use scripts/fuzz")
endif()
set(sanitizers address,undefined,float-cast-overflow)
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -gline-tables-only -fno-omit-frame-pointer")
add_compile_options(-fsanitize=${sanitizers},fuzzer-no-link -fno-sanitize-recover=all)
add_link_options(-fsanitize=${sanitizers})
include_directories(src ${PROJECT_SOURCE_DIR})

# perigee_fuzzed(NAME [SOURCES pattern...] [LIBRARIES library...]): a library of instrumented sources, with the precompiled header of
# the library `fuzzed_base`.
function(perigee_fuzzed name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  list(TRANSFORM arg_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${arg_SOURCES})
  add_library(fuzzed_${name} STATIC EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(fuzzed_${name} PUBLIC ${arg_LIBRARIES} dep::fmt dep::json dep::toml dep::xxhash dep::spdlog dep::yaml
    ${CMAKE_DL_LIBS})
  if(name STREQUAL base)
    target_precompile_headers(fuzzed_base PRIVATE <algorithm> <functional> <map> <memory> <optional> <set> <string> <vector>
      <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
  else()
    target_precompile_headers(fuzzed_${name} REUSE_FROM fuzzed_base)
  endif()
endfunction()

# perigee_fuzzer(NAME library...): the fuzzer of tests/fuzz/NAME_target.cc.
function(perigee_fuzzer name)
  add_executable(fuzz_${name} tests/fuzz/${name}_target.cc)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_${name} PRIVATE fuzzed_main ${ARGN} fuzzed_base)
endfunction()

perigee_fuzzed(base SOURCES src/base/error.cc src/base/first_error.cc src/base/log.cc src/base/terminal/*.cc src/base/log_once.cc src/base/files/*.cc src/base/text/*.cc
  src/base/network/store_message.cc src/base/network/store_requests.cc src/base/network/store_table.cc)
perigee_fuzzed(main SOURCES tests/fuzz/target.cc tests/fuzz/programs/program_fuzzer.cc LIBRARIES fuzzed_base)
perigee_fuzzed(graph SOURCES src/graph/*.cc LIBRARIES fuzzed_base)
perigee_fuzzed(job SOURCES src/job/*.cc src/optim/*.cc src/mesh/*.cc src/text/documents/line_template.cc LIBRARIES fuzzed_graph)
perigee_fuzzed(plan SOURCES src/plan/*.cc LIBRARIES fuzzed_job)
perigee_fuzzed(problem SOURCES src/solve/parse.cc src/solve/problem.cc LIBRARIES fuzzed_base)
perigee_fuzzed(cluster SOURCES src/cost/cluster.cc src/cost/cpu_links.cc LIBRARIES fuzzed_graph)
perigee_fuzzed(checkpoint SOURCES src/checkpoint/blocks.cc src/checkpoint/checkpoint.cc src/checkpoint/checksum.cc
  src/checkpoint/folder_target.cc src/checkpoint/read.cc src/checkpoint/safetensors.cc src/checkpoint/stored_file.cc
  src/checkpoint/target.cc src/base/plugin.cc LIBRARIES fuzzed_job)
perigee_fuzzed(data SOURCES src/data/token_files.cc LIBRARIES fuzzed_base)
perigee_fuzzed(tokenizer SOURCES src/text/sentencepiece/*.cc tests/fuzz/programs/program_tokenizer.cc LIBRARIES dep::sentencepiece fuzzed_base)
perigee_fuzzed(tokenizers SOURCES src/text/tokenizers/*.cc tests/fuzz/programs/program_tokenizer.cc LIBRARIES dep::pcre2 dep::utf8proc fuzzed_base)
target_compile_definitions(fuzzed_tokenizer PRIVATE PERIGEE_TOKENIZERS=perigee_sentencepiece)
target_compile_definitions(fuzzed_tokenizers PRIVATE PERIGEE_TOKENIZERS=perigee_tokenizers)
perigee_fuzzed(jinja SOURCES src/text/jinja/*.cc LIBRARIES fuzzed_base)
perigee_fuzzed(profile SOURCES src/profile/export.cc src/profile/trace_text.cc LIBRARIES fuzzed_graph)
perigee_fuzzed(metrics SOURCES src/train/output/metrics.cc LIBRARIES fuzzed_base)
perigee_fuzzed(hosts SOURCES src/exec/comm/agreement.cc tools/perigee/launch/host_messages.cc LIBRARIES fuzzed_base)
perigee_fuzzed(requests SOURCES src/train/serve/openai_requests.cc src/train/task/draw_options.cc LIBRARIES fuzzed_base)
perigee_fuzzed(stages SOURCES src/search/stages/stage_table_text.cc LIBRARIES fuzzed_base)
perigee_fuzzed(exported SOURCES src/capture/exported/archive.cc src/capture/exported/arguments.cc
  src/capture/exported/numbers.cc src/capture/exported/outcome.cc src/capture/exported/reader.cc src/capture/exported/signature.cc
  src/capture/exported/types.cc src/capture/exported/zip_records.cc src/capture/record/data_schema.cc LIBRARIES torch::cpu fuzzed_plan)

perigee_fuzzer(job fuzzed_job)
perigee_fuzzer(plan fuzzed_plan)
perigee_fuzzer(graph fuzzed_graph)
perigee_fuzzer(problem fuzzed_problem)
perigee_fuzzer(cluster fuzzed_cluster)
perigee_fuzzer(safetensors fuzzed_checkpoint)
perigee_fuzzer(checkpoint fuzzed_checkpoint)
perigee_fuzzer(yaml fuzzed_base)
perigee_fuzzer(tokens fuzzed_data)
perigee_fuzzer(tokenizer fuzzed_tokenizer)
perigee_fuzzer(tokenizer_json fuzzed_tokenizers)
perigee_fuzzer(template fuzzed_jinja)
perigee_fuzzer(profile fuzzed_profile)
perigee_fuzzer(store fuzzed_base)
perigee_fuzzer(metrics fuzzed_metrics)
perigee_fuzzer(hosts fuzzed_hosts)
perigee_fuzzer(stages fuzzed_stages)
perigee_fuzzer(requests fuzzed_requests)
perigee_fuzzer(texts fuzzed_job)
perigee_fuzzer(exported fuzzed_exported)
perigee_fuzzer(archive fuzzed_exported)
