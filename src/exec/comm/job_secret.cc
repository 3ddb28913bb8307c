#include "exec/comm/job_secret.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/fail.h"

namespace perigee::exec {

store::KeyedHash keyed_hash(const std::string& secret) {
  return [secret](std::string_view text) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (!HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
              reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size)) {
      fail_run("communicator", "HMAC-SHA256 must work on this machine, but libcrypto refuses it");
    }
    return std::string(reinterpret_cast<const char*>(digest), size);
  };
}

}  // namespace perigee::exec
