// Endpoint, region and credentials of an S3 service, from the standard environment variables.
#pragma once

#include <cstdint>
#include <string>

namespace perigee::checkpoint::s3 {

struct Settings {
  std::string access_key, secret_key;
  std::string session_token;  // "": none
  std::string region;
  std::string endpoint;               // "http://HOST:PORT", without "/" at the end; "": AWS
  int64_t attempts = 8;               // of one request
  uint64_t part_bytes = 8ULL << 20U;  // of an upload in parts, and the memory that an upload needs
};

// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION (or
// AWS_DEFAULT_REGION), AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS and
// PERIGEE_S3_PART_BYTES. Throws Error naming a variable that is missing or wrong; no message has a
// value of a credential.
Settings settings_from_environment();

// Returns the URL of a bucket ("" key) or object: below the endpoint, or at AWS.
std::string url_of(const Settings& settings, const std::string& bucket, const std::string& key);

// Returns the text with all bytes but A-Z a-z 0-9 - _ . ~ as %XX; `keep` is not encoded either.
std::string encoded(const std::string& text, const std::string& keep = "");

}  // namespace perigee::checkpoint::s3
