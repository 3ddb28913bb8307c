-- What a strategy script sees (runtime/README.md section 7), and nothing else.
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
-- Scripts that must be refused, as text.
exclude_files = { "tests/**/refused/*.lua" }
-- Editor types are declarations: long lines that nothing uses.
files["**/*.d.lua"] = { unused = false, unused_args = false, redefined = false, max_line_length = false }
