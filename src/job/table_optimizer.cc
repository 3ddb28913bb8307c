// The keys of [optimizer] that are attributes of optimizers (optim/description.h).
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "job/optimizer_options.h"
#include "job/table.h"
#include "optim/optimizers.h"

namespace perigee::job {
namespace {

using optim::Attribute;
using optim::AttributeType;
using optim::Description;

const char* key_of(const Attribute& a) { return a.key ? a.key : a.name; }

double default_of(const Attribute& a) {
  return std::isnan(a.job_default) ? a.fallback : a.job_default;
}

// Returns the optimizer's attributes that the key sets, in the order of the key's items.
std::vector<const Attribute*> attributes_of(const Description& optimizer, std::string_view key) {
  std::vector<const Attribute*> found;
  for (const auto& a : optimizer.attributes) {
    if (key_of(a) == key) found.push_back(&a);
  }
  std::ranges::stable_sort(found, {}, &Attribute::item);
  return found;
}

Value default_value(const std::vector<const Attribute*>& attributes) {
  const auto& first = *attributes.front();
  if (first.item >= 0) {
    std::vector<double> list;
    for (const auto* a : attributes) list.push_back(default_of(*a));
    return list;
  }
  if (first.type == AttributeType::flag) return default_of(first) != 0;
  if (first.type == AttributeType::integer) return static_cast<int64_t>(default_of(first));
  return default_of(first);
}

std::string text_of(Value value) {
  return std::visit([](auto& v) { return fmt::format("`{}`", toml_of(&v)); }, value);
}

// Texts and the optimizers that each applies to, in the order of the first optimizer.
using ByText = std::vector<std::pair<std::string, std::vector<std::string_view>>>;

void add(ByText& texts, const std::string& text, std::string_view optimizer) {
  auto found = std::ranges::find(texts, text, &ByText::value_type::first);
  if (found == texts.end()) found = texts.insert(found, {text, {}});
  found->second.push_back(optimizer);
}

// Returns whether the key sets attributes of the optimizer, or of the one that updates the
// parameters that it leaves out.
bool has_attribute(const Description& optimizer, std::string_view key) {
  const auto* others = optim::find_optimizer(optimizer.others);
  return !attributes_of(optimizer, key).empty() || (others && !attributes_of(*others, key).empty());
}

JobKey make_key(const char* name) {
  JobKey key{.table = "optimizer", .name = name};
  ByText abouts, defaults;
  for (const auto& optimizer : optim::optimizers()) {
    const auto attributes = attributes_of(optimizer, name);
    if (attributes.empty()) continue;
    const auto& first = *attributes.front();
    if (abouts.empty()) {
      key.fallback = default_value(attributes);
      key.least = first.least;
      key.more_than = first.more_than;
      key.most = first.most;
      key.less_than = first.less_than;
      if (first.item >= 0) key.count = attributes.size();
    }
    add(abouts, first.about, optimizer.name);
    add(defaults, text_of(default_value(attributes)), optimizer.name);
  }
  std::vector<std::string_view> users;
  for (const auto& optimizer : optim::optimizers()) {
    if (has_attribute(optimizer, name)) users.push_back(optimizer.name);
  }
  key.needs = {fmt::format("optimizer.name to be one of {}", fmt::join(users, ", ")),
               [users](const Job& job) {
                 return std::ranges::find(users, job.optimizer.name) != users.end();
               }};
  std::vector<std::string> sentences;
  for (const auto& [text, names] : abouts) {
    sentences.push_back(fmt::format("{}: {}.", fmt::join(names, ", "), text));
  }
  key.about = fmt::format("{}", fmt::join(sentences, " "));
  if (defaults.size() > 1) {
    key.fallback = -1.0;  // not given
    key.otherwise = defaults.front().first;
    for (size_t i = 1; i < defaults.size(); ++i) {
      key.otherwise += fmt::format("; {}: {}", fmt::join(defaults[i].second, ", "),
                                   defaults[i].first);
    }
  }
  return key;
}

double number_of(const Value& value, int item) {
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return list->at(item);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  return std::get<double>(value);
}

}  // namespace

std::vector<JobKey> optimizer_option_keys() {
  std::vector<JobKey> keys;
  for (const auto& optimizer : optim::optimizers()) {
    for (const auto& attribute : optimizer.attributes) {
      const auto* name = key_of(attribute);
      if (std::ranges::find(keys, name, &JobKey::name) == keys.end())
        keys.push_back(make_key(name));
    }
  }
  return keys;
}

Value option_default(std::string_view optimizer, std::string_view key) {
  const auto* own = optim::find_optimizer(optimizer);
  for (const auto* d : {own, own ? optim::find_optimizer(own->others) : nullptr}) {
    if (!d) continue;
    if (const auto found = attributes_of(*d, key); !found.empty()) return default_value(found);
  }
  for (const auto& d : optim::optimizers()) {
    if (const auto found = attributes_of(d, key); !found.empty()) return default_value(found);
  }
  return 0.0;
}

optim::Options attributes_of(const OptimizerConfig& optimizer) {
  optim::Options options;
  const auto* own = optim::find_optimizer(optimizer.name);
  for (const auto* d : {own, own ? optim::find_optimizer(own->others) : nullptr}) {
    if (!d) continue;
    for (const auto& a : d->attributes) {
      const auto given = optimizer.options.find(key_of(a));
      options.try_emplace(a.name, given != optimizer.options.end()
                                      ? number_of(given->second, a.item)
                                      : default_of(a));
    }
  }
  return options;
}

}  // namespace perigee::job
