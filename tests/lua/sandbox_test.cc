#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lua/convert.h"
#include "lua/state.h"

using perigee::Error;
using perigee::lua::Options;
using perigee::lua::State;

namespace {

// Returns what the script returns, as JSON text, or its error.
std::string run(std::string_view script, Options options = {}, double seconds = 1) {
  options.limits.seconds = std::min(options.limits.seconds, seconds);
  try {
    State state(std::move(options));
    state.run_text(script, "script.lua");
    return perigee::lua::to_json(state.raw(), -1, "the result").dump();
  } catch (const Error& error) {
    CHECK(error.status() == perigee::Status::invalid);
    return error.what();
  }
}

struct Case {
  const char* script;
  const char* result;  // the exact result, or "~text" for an error that contains the text
};

void check(const std::vector<Case>& cases, double seconds = 1) {
  for (const auto& [script, expected] : cases) {
    CAPTURE(script);
    const auto result = run(script, {}, seconds);
    if (expected[0] == '~') {
      CHECK_THAT(result, Catch::Contains(expected + 1));
    } else {
      CHECK(result == expected);
    }
  }
}

}  // namespace

TEST_CASE("plain Lua works in the sandbox") {
  check({{"return 1 + 1", "2"},
         {"return { 1, 2, { a = 'b' } }", "[1,2,{\"a\":\"b\"}]"},
         {"return {}", "{}"},
         {"return { 5, x = 1 }", "{\"1\":5,\"x\":1}"},
         {"return nil", "null"},
         {"local s = 0 for i = 1, 10 do s = s + i end return s", "55"},
         {"return select('#', unpack({ 1, 2, 3 }))", "3"},
         {"return { pcall(error, 'x') }", "[false,\"x\"]"},
         {"return { pcall(function(a, b) return a + b end, 1, 2) }", "[true,3]"},
         {"return { xpcall(function() error('x', 0) end, function(m) return m .. '!' end) }",
          "[false,\"x!\"]"},
         {"return tostring(1.5) .. tostring(true) .. tostring(nil)", "\"1.5truenil\""},
         {"return math.floor(3.7) + #table.concat({ 'a', 'b' })", "5"}});
}

TEST_CASE("patterns match as in Lua 5.1") {
  check({{"return { ('hello world'):find('o w') }", "[5,7]"},
         {"return { ('hello'):find('l+') }", "[3,4]"},
         {"return { ('key = value'):match('^(%w+)%s*=%s*(%w+)$') }", "[\"key\",\"value\"]"},
         {"return { ('  trim  '):match('^%s*(.-)%s*$') }", "[\"trim\"]"},
         {"local t = {} for w in ('one two'):gmatch('%a+') do t[#t + 1] = w end return t",
          "[\"one\",\"two\"]"},
         {"return { ('abc'):gsub('%w', '%0%0') }", "[\"aabbcc\",3]"},
         {"return { ('abc'):gsub('', '-') }", "[\"-a-b-c-\",4]"},
         {"return { ('hello world'):gsub('o', { o = '0' }, 1) }", "[\"hell0 world\",1]"},
         {"return { ('x'):gsub('x', function() return nil end) }", "[\"x\",1]"},
         {"return { ('f(a(b)c)d'):match('%b()') }", "[\"(a(b)c)\"]"},
         {"return { ('THE (quick) fox'):find('%f[%a]%a+%f[%A]') }", "[1,3]"},
         {"return { ('a.b'):find('.', 1, true) }", "[2,2]"},
         {"return { ('abab'):match('(a)(b)%1%2') }", "[\"a\",\"b\"]"},
         {"return { ('abc'):match('()b()') }", "[2,3]"},
         {"return { ('a-b]'):match('[%-%]b]+') }", "[\"-b]\"]"},
         {"return ('x'):find('[a')", "~missing ']'"},
         {"return ('x'):match('(x')", "~unfinished capture"}});
}

TEST_CASE("order and texts are the same from run to run") {
  check({{"local t = { b = 1, a = 2, [3] = 3, [1] = 1, [-1] = 0 } local k = {} "
          "for key in pairs(t) do k[#k + 1] = tostring(key) end return table.concat(k, ' ')",
          "\"-1 1 3 a b\""},
         {"local t = { abc = 1, a = 1, b = 1, ab = 1, [''] = 1 } local k = {} "
          "for key in pairs(t) do k[#k + 1] = key end return table.concat(k, ' ')",
          "\" a ab abc b\""},
         {"return tostring({})", "\"table\""},
         {"return tostring(print)", "\"function\""},
         {"return string.format('%s %s', {}, print)", "\"table function\""},
         {"return string.format('%p', {})", "~no %p"},
         {"for k in pairs({ [{}] = 1 }) do end", "~a table as a key has none"}});
  CHECK(run("return math.random(1000000)") == run("return math.random(1000000)"));
  Options other;
  other.seed = 7;
  CHECK(run("return math.random(1000000)") != run("return math.random(1000000)", other));
}

TEST_CASE("names that do not exist are errors at their line") {
  check(
      {{"\nreturn foo", "~script.lua:2: a script can use only names that exist, but \"foo\""},
       {"return methods.zero1 {}", "~does not: write local methods = require \"perigee.methods\""},
       {"return perigee.methods", "~does not: write local methods = require \"perigee.methods\""},
       {"x = 1", "~script.lua:1: a script has no global variables, but it assigns \"x\""},
       {"print = nil", "~but it assigns \"print\""},
       {"return math.flor(1)", "~math has no field \"flor\", did you mean \"floor\"?"},
       {"return ('x'):uper()", "~string has no field \"uper\", did you mean \"upper\"?"},
       {"math.pi = 3", "~math is read-only"},
       {"string.rep = nil", "~string is read-only"},
       {"table.insert(math, 1)", "~a module is read-only"},
       {"table.sort(table)", "~a module is read-only"},
       {"return require 'perigee.mehs'", "~did you mean \"perigee.mesh\"?"},
       {"local a = ", "~script.lua:1"}});
}

TEST_CASE("every known escape from the sandbox is prevented") {
  check({// what a script must not see
         {"return io", "~\"io\" does not"},
         {"return os", "~\"os\" does not"},
         {"return debug", "~\"debug\" does not"},
         {"return ffi", "~\"ffi\" does not"},
         {"return jit", "~\"jit\" does not"},
         {"return _G", "~\"_G\" does not"},
         {"return getfenv(0)", "~\"getfenv\" does not"},
         {"setfenv(1, {})", "~\"setfenv\" does not"},
         {"return getmetatable('')", "~\"getmetatable\" does not"},
         {"return setmetatable({}, { __gc = print })", "~\"setmetatable\" does not"},
         {"return newproxy(true)", "~\"newproxy\" does not"},
         {"return rawset(math, 'x', 1)", "~\"rawset\" does not"},
         {"return load('return 1')", "~\"load\" does not"},
         {"return loadstring('return 1')", "~\"loadstring\" does not"},
         {"return dofile('/etc/passwd')", "~\"dofile\" does not"},
         {"return coroutine.create(print)", "~\"coroutine\" does not"},
         {"return string.dump(print)", "~string has no field \"dump\""},
         {"return collectgarbage('stop')", "~\"collectgarbage\" does not"},
         {"return next({})", "~\"next\" does not"},
         {"return require 'ffi'", "~[lua] require"},
         {"return require '../secret'", "~takes a module name"},
         {"return require '/etc/passwd'", "~takes a module name"},
         {"\x1bLJ\x02", "~compiled bytecode"},
         // time
         {"while true do end", "~ran longer than 1"},
         {"while true do pcall(function() while true do end end) end", "~ran longer than"},
         {"while true do xpcall(function() while true do end end, function() while true do end "
          "end) end",
          "~script"},
         {"repeat local ok = pcall(error) until false", "~ran longer than"},
         {"return ('a'):rep(30):find(('a?'):rep(30) .. ('a'):rep(30) .. 'b')",
          "~steps on this string"},
         {"return ('x'):rep(50000):match('.-.-.-.-b')", "~steps on this string"},
         {"return ('('):rep(300):match(('('):rep(300))", "~too many captures"}});
  // memory, independent of the machine's speed
  check({{"local t = {} for i = 1, 1e9 do t[i] = i end", "~more than 256 MB"},
         {"local s = 'x' while true do s = s .. s end", "~more than 256 MB"},
         {"while true do pcall(function() local s = 'x' while true do s = s .. s end end) end",
          "~more than 256 MB"},
         {"return #('x'):rep(2 ^ 24)", "16777216"},
         {"return #('x'):rep(2 ^ 24 + 1)", "~string.rep makes at most 16777216 bytes"},
         {"return #('xy'):rep(2 ^ 23 + 1)", "~string.rep makes at most 16777216 bytes"},
         {"return ('x'):rep(1e10)", "~string.rep makes at most"},
         {"return ('x'):rep(1e10, ',')", "~string.rep makes at most"},
         {"return string.format('%99999999d', 1)", "~script.lua: invalid option"},
         {"local function f() return f() + 1 end return f()", "~stack overflow"},
         {"return unpack({}, 1, 1e8)", "~too many results"},
         {"local t = {} t[1] = t return t", "~contains itself"},
         {"return print", "~the result is a function"}},
        60);
}

TEST_CASE("print goes to the host, without addresses") {
  std::string seen;
  Options options;
  options.print = [&](std::string_view line) { seen += std::string(line) + "\n"; };
  run("print('a', 1, {}, nil)", options);
  CHECK(seen == "a\t1\ttable\tnil\n");
}

TEST_CASE("a script's error names its line") {
  CHECK(run("local x = nil\nreturn x.y") ==
        "[lua] script.lua:2: attempt to index local 'x' (a nil value)");
  CHECK(run("error({ code = 1 })") == "[lua] script.lua: error object: table");
  CHECK(run("error('plain', 0)") == "[lua] script.lua: plain");
}

TEST_CASE("a state runs further scripts after an error") {
  State state;
  CHECK_THROWS_AS(state.run_text("error('x')", "a.lua"), Error);
  state.run_text("return 3", "b.lua");
  CHECK(lua_tonumber(state.raw(), -1) == 3);
}
