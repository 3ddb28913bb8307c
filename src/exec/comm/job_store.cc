#include "exec/comm/job_store.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "exec/comm/job_secret.h"

namespace perigee::exec {
namespace {

using store::Reader;
using store::Writer;
using Bytes = std::vector<uint8_t>;

std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

Writer with_keys(store::Kind kind, const std::vector<std::string>& keys) {
  Writer request(kind);
  for (const auto& key : keys) request.text(key);
  return request;
}

}  // namespace

JobStore::JobStore(const JobStoreOptions& options) : Store(options.timeout) {
  const auto hash = keyed_hash(options.secret);
  if (options.listen_socket >= 0) {
    server_ = std::make_shared<store::Server>(
        store::ServerOptions{.listen_socket = options.listen_socket, .keyed_hash = hash});
  }
  try {
    client_ = std::make_shared<store::Client>(
        store::ClientOptions{.host = options.host,
                             .port = options.port,
                             .keyed_hash = hash,
                             .name = fmt::format("rank {}", options.rank),
                             .timeout = options.timeout});
  } catch (const store::TimedOut& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  }
}

c10::intrusive_ptr<c10d::Store> JobStore::clone() { return c10::make_intrusive<JobStore>(*this); }

store::Frame JobStore::ask(Writer request) {
  try {
    return client_->ask(std::move(request), timeout_);
  } catch (const store::TimedOut& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  } catch (const store::Lost& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  }
}

store::Frame JobStore::wait_for(store::Kind kind, const std::vector<std::string>& keys,
                                std::chrono::milliseconds timeout) {
  try {
    return client_->ask(with_keys(kind, keys), timeout);
  } catch (const store::TimedOut&) {
    C10_THROW_ERROR(DistStoreError, fmt::format("the keys {} must exist within {} ms, but do not",
                                                fmt::join(keys, ", "), timeout.count()));
  } catch (const store::Lost& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  }
}

void JobStore::set(const std::string& key, const Bytes& value) {
  ask(std::move(Writer(store::Kind::set).text(key).text(text_of(value))));
}

Bytes JobStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) {
  Writer request(store::Kind::compare_set);
  request.text(key).text(text_of(expected)).text(text_of(wanted));
  const auto answer = ask(std::move(request));
  return bytes_of(Reader(answer).text());
}

Bytes JobStore::get(const std::string& key) { return std::move(multiGet({key}).front()); }

int64_t JobStore::add(const std::string& key, int64_t amount) {
  const auto answer = ask(
      std::move(Writer(store::Kind::add).text(key).number(static_cast<uint64_t>(amount))));
  return static_cast<int64_t>(Reader(answer).number());
}

bool JobStore::deleteKey(const std::string& key) {
  const auto answer = ask(with_keys(store::Kind::erase, {key}));
  return Reader(answer).number() != 0;
}

bool JobStore::check(const std::vector<std::string>& keys) {
  const auto answer = ask(with_keys(store::Kind::check, keys));
  return Reader(answer).number() != 0;
}

int64_t JobStore::getNumKeys() {
  const auto answer = ask(Writer(store::Kind::count));
  return static_cast<int64_t>(Reader(answer).number());
}

void JobStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void JobStore::wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) {
  wait_for(store::Kind::wait, keys, timeout);
}

void JobStore::append(const std::string& key, const Bytes& value) {
  ask(std::move(Writer(store::Kind::append).text(key).text(text_of(value))));
}

std::vector<Bytes> JobStore::multiGet(const std::vector<std::string>& keys) {
  const auto answer = wait_for(store::Kind::get, keys, timeout_);
  Reader reader(answer);
  std::vector<Bytes> values;
  for (size_t i = 0; i < keys.size(); ++i) values.push_back(bytes_of(reader.text()));
  return values;
}

void JobStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  TORCH_CHECK_VALUE(keys.size() == values.size(), "multiSet needs as many values as keys, but got ",
                    values.size(), " for ", keys.size());
  Writer request(store::Kind::set);
  for (size_t i = 0; i < keys.size(); ++i) request.text(keys[i]).text(text_of(values[i]));
  ask(std::move(request));
}

}  // namespace perigee::exec
