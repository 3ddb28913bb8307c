#include "checkpoint/s3/settings.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/fail.h"

namespace perigee::checkpoint::s3 {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string first_of(const char* name, const char* other) {
  auto value = variable(name);
  return value.empty() ? variable(other) : value;
}

// Reads a number of a variable; `number` stays where it is not set.
template <class T>
void read_number(const char* name, T least, T& number) {
  const auto text = variable(name);
  if (text.empty()) return;
  T value{};
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || value < least) {
    fail("s3", "{} must be a whole number from {}, but is \"{}\"", name, least, text);
  }
  number = value;
}

}  // namespace

Settings settings_from_environment() {
  Settings settings;
  settings.access_key = variable("AWS_ACCESS_KEY_ID");
  settings.secret_key = variable("AWS_SECRET_ACCESS_KEY");
  settings.session_token = variable("AWS_SESSION_TOKEN");
  for (const auto& [name, value] : {std::pair{"AWS_ACCESS_KEY_ID", &settings.access_key},
                                    std::pair{"AWS_SECRET_ACCESS_KEY", &settings.secret_key}}) {
    if (!value->empty()) continue;
    fail("s3", "paths that begin with s3:// need {} in the environment, but it is not set", name);
  }
  settings.endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  const std::string_view url = settings.endpoint;
  const auto host = url.starts_with("https://")  ? url.substr(8)
                    : url.starts_with("http://") ? url.substr(7)
                                                 : std::string_view();
  if (!url.empty() && (host.empty() || host.find_first_of("/@?# ") != host.npos)) {
    fail("s3",
         "AWS_ENDPOINT_URL must be http://HOST:PORT or https://HOST, without a path or user, "
         "but it is another text");
  }
  settings.region = first_of("AWS_REGION", "AWS_DEFAULT_REGION");
  if (settings.region.empty() && url.empty()) {
    fail("s3",
         "paths that begin with s3:// need AWS_REGION or AWS_ENDPOINT_URL in the environment, "
         "but neither is set");
  }
  if (settings.region.empty()) settings.region = "us-east-1";
  read_number("AWS_MAX_ATTEMPTS", int64_t{1}, settings.attempts);
  read_number("PERIGEE_S3_PART_BYTES", uint64_t{65536}, settings.part_bytes);
  return settings;
}

std::string encoded(const std::string& text, const std::string& keep) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       std::string_view("-_.~").find(c) != std::string_view::npos;
    if (plain || keep.find(c) != keep.npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string url_of(const Settings& settings, const std::string& bucket, const std::string& key) {
  const auto path = encoded(key, "/");
  if (!settings.endpoint.empty()) {
    return fmt::format("{}/{}{}{}", settings.endpoint, bucket, key.empty() ? "" : "/", path);
  }
  const auto* domain = settings.region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
  // A certificate of *.s3.REGION does not cover a bucket whose name has dots.
  if (bucket.find('.') != bucket.npos) {
    return fmt::format("https://s3.{}.{}/{}{}{}", settings.region, domain, bucket,
                       key.empty() ? "" : "/", path);
  }
  return fmt::format("https://{}.s3.{}.{}/{}", bucket, settings.region, domain, path);
}

}  // namespace perigee::checkpoint::s3
