#include "base/network/store_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace perigee::store {

std::string Requests::read_key(Reader& reader) const {
  const auto key = reader.text();
  if (key.size() > limits_.key) {
    throw Refusal(
        fmt::format("a key must have at most {} bytes, but has {}", limits_.key, key.size()));
  }
  return std::string(key);
}

std::vector<std::string> Requests::read_keys(Reader& reader) const {
  std::vector<std::string> keys;
  while (!reader.done()) keys.push_back(read_key(reader));
  return keys;
}

std::vector<Answer> Requests::handle(ClientId client, const Frame& frame) {
  Reader reader(frame);
  std::vector<Answer> answers;
  std::vector<std::string> changed;
  try {
    if (frame.kind == Kind::get || frame.kind == Kind::wait) {
      if (auto answer = try_to_answer(client, {frame.kind, read_keys(reader), ""})) {
        answers.push_back(std::move(*answer));
      }
    } else {
      auto answer = apply(frame.kind, reader, changed);
      if (!reader.done()) throw Malformed("a request must end after its last field");
      answers.push_back({client, std::move(answer).finish()});
    }
  } catch (const std::runtime_error& error) {  // Refusal, or Malformed after some keys have changed
    answers.push_back({client, std::move(Writer(Kind::error).text(error.what())).finish(), true});
  }
  for (const auto& key : changed) wake(key, answers);
  return answers;
}

Writer Requests::apply(Kind kind, Reader& reader, std::vector<std::string>& changed) {
  Writer done(Kind::done);
  const auto change = [&]() -> const std::string& {
    return changed.emplace_back(read_key(reader));
  };
  switch (kind) {
    case Kind::set:
      while (!reader.done()) {
        const auto& key = change();
        table_.set(key, reader.text());
      }
      return done;
    case Kind::append: {
      const auto& key = change();
      table_.append(key, reader.text());
      return done;
    }
    case Kind::compare_set: {
      const auto& key = change();
      const auto expected = reader.text();
      return done.text(table_.compare_set(key, expected, reader.text()));
    }
    case Kind::add: {
      const auto& key = change();
      const auto amount = static_cast<int64_t>(reader.number());
      return done.number(static_cast<uint64_t>(table_.add(key, amount)));
    }
    case Kind::erase:
      return done.number(table_.erase(read_key(reader)) ? 1 : 0);
    case Kind::check: {
      const auto keys = read_keys(reader);
      const bool all = std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
        return table_.find(key) != nullptr;
      });
      return done.number(all ? 1 : 0);
    }
    case Kind::count:
      return done.number(table_.size());
    default:
      throw Malformed(
          fmt::format("a request must be of a known kind, but is of {}", static_cast<int>(kind)));
  }
}

std::optional<Answer> Requests::try_to_answer(ClientId client, Waiting request) {
  size_t size = 0;
  for (const auto& key : request.keys) {
    const auto* value = table_.find(key);
    if (!value) {
      request.missing = key;
      by_key_[key].push_back(client);
      waiting_.insert_or_assign(client, std::move(request));
      return std::nullopt;
    }
    size += sizeof(uint64_t) + value->size();
  }
  waiting_.erase(client);
  if (request.kind == Kind::wait) return Answer{client, Writer(Kind::done).finish()};
  if (size > limits_.frame()) {
    const auto text = fmt::format("values of one request must have at most {} bytes, but have {}",
                                  limits_.frame(), size);
    return Answer{client, std::move(Writer(Kind::error).text(text)).finish(), true};
  }
  Writer values(Kind::done);
  for (const auto& key : request.keys) values.text(*table_.find(key));
  return Answer{client, std::move(values).finish()};
}

void Requests::wake(const std::string& key, std::vector<Answer>& answers) {
  if (!table_.find(key)) return;  // a compare_set that wrote nothing
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  const auto clients = std::move(found->second);
  by_key_.erase(found);
  for (const auto client : clients) {
    if (auto answer = try_to_answer(client, std::move(waiting_.at(client)))) {
      answers.push_back(std::move(*answer));
    }
  }
}

void Requests::leave(ClientId client) {
  const auto found = waiting_.find(client);
  if (found == waiting_.end()) return;
  const auto key = by_key_.find(found->second.missing);
  std::erase(key->second, client);
  if (key->second.empty()) by_key_.erase(key);
  waiting_.erase(found);
}

}  // namespace perigee::store
