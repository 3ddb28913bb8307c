#include "checkpoint/s3/client.h"

#include <curl/curl.h>
#include <openssl/sha.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/fail.h"
#include "checkpoint/s3/xml.h"

namespace perigee::checkpoint::s3 {
namespace {

constexpr size_t kMostText = 16U << 20U;    // bytes of an answer that is kept
constexpr unsigned kOldestCurl = 0x075800;  // 7.88 signs all headers and encodes paths as S3 does

// Blocks SIGPIPE of this thread: TLS writes to a socket whose other side is closed raise it.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    blocked_ = pthread_sigmask(SIG_BLOCK, &pipe_, &before_) == 0;
  }
  ~NoPipeSignal() {
    if (!blocked_ || sigismember(&before_, SIGPIPE) == 1) return;
    const timespec none{};
    while (sigtimedwait(&pipe_, nullptr, &none) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool blocked_ = false;
};

std::string sha256_of(std::span<const std::byte> bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  std::string text;
  for (const auto byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

void start_curl() {
  static const bool started = [] {
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) fail_run("s3", "libcurl must start");
    const auto* info = curl_version_info(CURLVERSION_NOW);
    if (info->version_num < kOldestCurl) {
      fail_run("s3", "libcurl must be version 7.88 or later to sign requests to S3, but is {}",
               info->version);
    }
    return true;
  }();
  (void)started;
}

// Returns a text of the service as part of one line.
std::string one_line(std::string text) {
  if (text.size() > 200) text.resize(200);
  for (auto& c : text) {
    if (c < ' ' || c > '~') c = ' ';
  }
  return text;
}

// The service as users know it.
std::string service_of(const Client& client) {
  const auto& settings = client.settings();
  return settings.endpoint.empty() ? "S3 in " + settings.region : settings.endpoint;
}

}  // namespace

// One attempt of a request: the service's answer, or the reason why it did not answer.
struct Client::Attempt {
  Answer answer;
  std::string failure;  // "": the service answered
  bool again = false;   // another attempt may succeed

  // While it runs.
  CURL* curl = nullptr;
  const Request* request = nullptr;
  const std::function<void()>* waiting = nullptr;
  std::exception_ptr interrupted;
  size_t sent = 0, received = 0;

  static size_t read_body(char* out, size_t size, size_t count, void* self) {
    auto& it = *static_cast<Attempt*>(self);
    const auto rest = it.request->body.subspan(it.sent);
    const auto bytes = std::min(rest.size(), size * count);
    if (bytes > 0) std::memcpy(out, rest.data(), bytes);
    it.sent += bytes;
    return bytes;
  }
  static int seek_body(void* self, curl_off_t offset, int origin) {
    auto& it = *static_cast<Attempt*>(self);
    if (origin != SEEK_SET || static_cast<size_t>(offset) > it.request->body.size()) {
      return CURL_SEEKFUNC_CANTSEEK;
    }
    it.sent = static_cast<size_t>(offset);
    return CURL_SEEKFUNC_OK;
  }
  static size_t write_answer(const char* bytes, size_t size, size_t count, void* self) {
    auto& it = *static_cast<Attempt*>(self);
    size *= count;
    long status = 0;
    curl_easy_getinfo(it.curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 206) {
      const auto out = it.request->out.subspan(std::min(it.received, it.request->out.size()));
      if (size > out.size()) return 0;
      std::memcpy(out.data(), bytes, size);
    } else {
      if (it.answer.body.size() + size > kMostText) return 0;
      it.answer.body.append(bytes, size);
    }
    it.received += size;
    return size;
  }
  static size_t read_header(const char* bytes, size_t size, size_t count, void* self) {
    std::string_view line(bytes, size * count);
    const std::string_view name = "etag:";
    const auto same = [](char a, char b) { return (a | 0x20) == b; };
    if (line.size() > name.size() &&
        std::equal(name.begin(), name.end() - 1, line.begin(),
                   [&](char b, char a) { return same(a, b); }) &&
        line[name.size() - 1] == ':') {
      line.remove_prefix(name.size());
      const auto first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r\n");
      if (first != line.npos) {
        static_cast<Attempt*>(self)->answer.etag = line.substr(first, last - first + 1);
      }
    }
    return size * count;
  }
  static int report(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& it = *static_cast<Attempt*>(self);
    if (!*it.waiting) return 0;
    try {
      (*it.waiting)();
    } catch (...) {
      it.interrupted = std::current_exception();
      return 1;
    }
    return 0;
  }
};

Client::Client(Settings settings, std::function<void()> waiting)
    : settings_(std::move(settings)),
      waiting_(std::move(waiting)),
      curl_(nullptr, curl_easy_cleanup) {
  start_curl();
  curl_.reset(curl_easy_init());
  if (!curl_) fail_run("s3", "libcurl must start, but it has no memory");
}

Client::~Client() = default;

Client::Attempt Client::attempt(const Request& request) {
  Attempt attempt;
  CURL* curl = curl_.get();
  curl_easy_reset(curl);  // keeps connections
  attempt.curl = curl;
  attempt.request = &request;
  attempt.waiting = &waiting_;
  auto url = url_of(settings_, request.bucket, request.key);
  if (!request.query.empty()) url += "?" + request.query;
  const auto signature = fmt::format("aws:amz:{}:s3", settings_.region);
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, curl_slist_free_all);
  const auto add_header = [&](const std::string& line) {
    auto* longer = curl_slist_append(headers.get(), line.c_str());
    if (!longer) fail_run("s3", "libcurl must build a request, but cannot allocate memory");
    (void)headers.release();
    headers.reset(longer);
  };
  add_header("x-amz-content-sha256: " + sha256_of(request.body));
  if (!settings_.session_token.empty()) {
    add_header("x-amz-security-token: " + settings_.session_token);
  }
  for (const auto& line : request.headers) add_header(line);
  const auto set = [&](CURLoption option, auto value) {
    const auto result = curl_easy_setopt(curl, option, value);
    if (result != CURLE_OK) {
      fail_run("s3", "libcurl must know its option {}, but: {}", static_cast<int>(option),
               curl_easy_strerror(result));
    }
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_AWS_SIGV4, signature.c_str());
  set(CURLOPT_USERNAME, settings_.access_key.c_str());
  set(CURLOPT_PASSWORD, settings_.secret_key.c_str());
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_CONNECTTIMEOUT, 10L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);  // bytes/s: a connection that stands still for a minute
  set(CURLOPT_LOW_SPEED_TIME, 60L);
  set(CURLOPT_WRITEFUNCTION, &Attempt::write_answer);
  set(CURLOPT_WRITEDATA, &attempt);
  set(CURLOPT_HEADERFUNCTION, &Attempt::read_header);
  set(CURLOPT_HEADERDATA, &attempt);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Attempt::report);
  set(CURLOPT_XFERINFODATA, &attempt);
  const auto range = fmt::format("{}-{}", request.offset, request.offset + request.out.size() - 1);
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_READFUNCTION, &Attempt::read_body);
    set(CURLOPT_READDATA, &attempt);
    set(CURLOPT_SEEKFUNCTION, &Attempt::seek_body);
    set(CURLOPT_SEEKDATA, &attempt);
  } else if (request.method != "GET") {
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  } else if (!request.out.empty()) {
    set(CURLOPT_RANGE, range.c_str());
  }
  const NoPipeSignal blocked;
  const auto result = curl_easy_perform(curl);
  if (attempt.interrupted) std::rethrow_exception(attempt.interrupted);
  auto& answer = attempt.answer;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.status);
  curl_off_t length = 0;
  curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  answer.length = static_cast<uint64_t>(std::max<curl_off_t>(length, 0));
  if (result != CURLE_OK) {
    attempt.failure = one_line(curl_easy_strerror(result));
    attempt.again = result != CURLE_WRITE_ERROR && result != CURLE_URL_MALFORMAT &&
                    result != CURLE_UNSUPPORTED_PROTOCOL &&
                    result != CURLE_PEER_FAILED_VERIFICATION;
    return attempt;
  }
  if (!answer.is_good() || answer.body.find("<Error>") != answer.body.npos) {
    answer.code = one_line(element(answer.body, "Code"));
    answer.message = one_line(element(answer.body, "Message"));
  }
  if (answer.status == 206 && attempt.received != request.out.size()) {
    attempt.failure = fmt::format("it sent {} bytes instead of {}", attempt.received,
                                  request.out.size());
    attempt.again = true;
  }
  // An error may also come after the status 200, where the service took long.
  const bool busy = answer.code == "InternalError" || answer.code == "SlowDown" ||
                    answer.code == "RequestTimeout" || answer.code == "ServiceUnavailable";
  if (answer.status == 429 || answer.status >= 500 || busy) {
    attempt.failure = fmt::format("it answered {}{}{}", answer.status,
                                  answer.code.empty() ? "" : " ", answer.code);
    attempt.again = true;
  }
  return attempt;
}

void Client::pause(int64_t attempt) const {
  using Clock = std::chrono::steady_clock;
  const auto seconds = std::min(10.0,
                                0.1 * static_cast<double>(1ULL << std::min<int64_t>(attempt, 20)));
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < until) {
    if (waiting_) waiting_();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Answer Client::send(const Request& request) {
  const auto most = answers_ ? settings_.attempts : 1;
  for (int64_t number = 1;; ++number) {
    auto attempt = this->attempt(request);
    answers_ = attempt.failure.empty();
    if (answers_) return std::move(attempt.answer);
    if (!attempt.again || number >= most) {
      fail_run("s3", "{} must be reached, but {} failed {} time{}: {}", path_of(request),
               service_of(*this), number, number == 1 ? "" : "s", attempt.failure);
    }
    pause(number - 1);
  }
}

std::string path_of(const Request& request) {
  return fmt::format("s3://{}/{}", request.bucket, request.key);
}

void refuse(const Client& client, const Request& request, const Answer& answer,
            std::string_view done) {
  const auto& code = answer.code;
  std::string remedy;
  if (code == "NoSuchBucket") {
    remedy = ": make the bucket, or name another one";
  } else if (code == "AuthorizationHeaderMalformed" || code == "PermanentRedirect" ||
             answer.status == 301) {
    remedy = ": set AWS_REGION to the bucket's region";
  } else if (code == "RequestTimeTooSkewed") {
    remedy = ": set this host's clock";
  } else if (answer.status == 401 || answer.status == 403 || code == "ExpiredToken" ||
             code == "InvalidToken") {
    remedy =
        ": check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and the rights of "
        "this key";
  }
  const auto text = fmt::format("{} must be {}, but {} answered {}{}{}{}{}", path_of(request), done,
                                service_of(client), answer.status, code.empty() ? "" : " ", code,
                                answer.message.empty() ? "" : " (" + answer.message + ")", remedy);
  throw Error(done == "written" ? Status::failed : Status::invalid, "s3", text);
}

}  // namespace perigee::checkpoint::s3
