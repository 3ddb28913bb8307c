#include "search/explain/html.h"

#include <fmt/format.h>

namespace perigee::search::html {

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return escaped;
}

std::string to_html(const Table& table) {
  const auto row = [&](const std::vector<std::string>& cells, const char* tag) {
    std::string text = "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool number = i < table.numbers.size() && table.numbers[i];
      text += fmt::format("<{}{}>{}</{}>", tag, number ? " class=\"n\"" : "", escape(cells[i]),
                          tag);
    }
    return text + "</tr>\n";
  };
  auto text = "<table>\n<thead>" + row(table.head, "th") + "</thead>\n<tbody>\n";
  for (const auto& cells : table.rows) text += row(cells, "td");
  return text + "</tbody>\n</table>\n";
}

std::string begin(std::string_view title) {
  return fmt::format(R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{}</title>
<style>
:root {{ color-scheme: light dark; --text: #1d2430; --back: #fff; --soft: #5a6474; --line: #d5dae2; --fill: #edf0f4; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: #dfe3e8; --back: #16181d; --soft: #8c96a5; --line: #3a424d; --fill: #2b3038; }}
}}
body {{ font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2em auto; max-width: 1180px; padding: 0 1em; }}
h1 {{ font-size: 1.5em; margin-bottom: 0.2em; }}
h2 {{ font-size: 1.15em; margin: 1.8em 0 0.5em; border-bottom: 1px solid var(--line); padding-bottom: 0.2em; }}
p {{ margin: 0.4em 0; }}
table {{ border-collapse: collapse; font-size: 0.9em; margin: 0.5em 0; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.2em 0.7em 0.2em 0; border-bottom: 1px solid var(--fill); }}
th {{ color: var(--soft); font-weight: 600; }}
.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.scroll {{ overflow-x: auto; }}
.bar {{ display: flex; height: 18px; background: var(--fill); margin: 2px 0 8px; }}
.bar span {{ display: block; height: 18px; }}
.legend span {{ margin-right: 1.2em; white-space: nowrap; }}
.legend i {{ display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; }}
.note {{ color: var(--soft); font-size: 0.9em; }}
svg {{ display: block; max-width: 100%; height: auto; }}
svg text {{ font: 11px system-ui, sans-serif; fill: var(--text); }}
</style>
</head>
<body>
)",
                     escape(title));
}

std::string end() { return "</body>\n</html>\n"; }

std::string bar(const std::vector<Part>& parts, double whole) {
  std::string text = "<div class=\"bar\">";
  for (const auto& part : parts) {
    if (whole <= 0 || part.size <= 0) continue;
    text += fmt::format("<span style=\"width:{:.3f}%;background:{}\" title=\"{}\"></span>",
                        100 * part.size / whole, part.color, escape(part.name));
  }
  return text + "</div>\n";
}

std::string legend(const std::vector<Part>& parts) {
  std::string text = "<p class=\"legend\">";
  for (const auto& part : parts) {
    text += fmt::format("<span><i style=\"background:{}\"></i>{}</span>", part.color,
                        escape(part.name));
  }
  return text + "</p>\n";
}

}  // namespace perigee::search::html
