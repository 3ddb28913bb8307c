-- Prints, with `perigee lua`, every option of every dialect: its section, type, default and effect.
local all = {}
for _, name in ipairs { "alpa", "atorch", "autodist", "epl", "megatron" } do
  all[name] = require("perigee." .. name).rows
end
return all
