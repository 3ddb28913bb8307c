-- The globals of a strategy script (runtime/strategies.md), and no others.
std = "perigee"
stds.perigee = {
  read_globals = {
    "assert", "error", "ipairs", "pairs", "pcall", "xpcall", "select", "tonumber", "tostring", "type", "unpack",
    "require", "print", "math", "table",
    string = {
      fields = {
        "byte", "char", "find", "format", "gmatch", "gsub", "len", "lower", "match", "rep", "reverse", "sub", "upper",
      },
    },
  },
}
max_line_length = 120
-- Scripts that tests use as invalid text.
exclude_files = { "tests/**/refused/*.lua" }
-- Editor types are declarations: long lines and unused names.
files["**/*.d.lua"] = { unused = false, unused_args = false, redefined = false, max_line_length = false }
