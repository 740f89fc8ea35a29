#include "dynatrain/apps/control.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "dynatrain/apps/machine_name.h"
#include "dynatrain/base/json.h"
#include "dynatrain/base/text.h"

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr int kForbidden = 403;
constexpr char kJsonType[] = "application/json";
constexpr Duration kStartTimeout = std::chrono::seconds(10);
constexpr Duration kPoll = std::chrono::milliseconds(2);
constexpr size_t kConnections = 32;        // served at a time, a thread each
constexpr time_t kClientTimeout = 2;       // seconds that a client may be silent
constexpr size_t kLongestRequest = 65536;  // bytes

// A socket address without a name to look up: loopback addresses and "localhost" only.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};
std::optional<SocketAddress> LoopbackOf(const Address& address) {
  SocketAddress result;
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  const auto port = htons(static_cast<uint16_t>(address.port));
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    if (ntohl(v4->sin_addr.s_addr) >> 24 != 127) return std::nullopt;
    v4->sin_family = AF_INET;
    v4->sin_port = port;
    result.length = sizeof *v4;
    return result;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    if (!IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)) return std::nullopt;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = port;
    result.length = sizeof *v6;
    return result;
  }
  return std::nullopt;
}

// Why `address` cannot be bound, as the system tells it; httplib does not.
std::string WhyNotBound(const Address& address) {
  const std::optional<SocketAddress> target = LoopbackOf(address);
  if (!target) return "no loopback address";
  const int fd = ::socket(target->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::strerror(errno);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto* raw = reinterpret_cast<const sockaddr*>(&target->storage);
  const int error = ::bind(fd, raw, target->length) == 0 ? EADDRINUSE : errno;
  ::close(fd);
  if (error == EADDRINUSE) return "the port is in use; choose another, or port 0 for a free one";
  return std::strerror(error);
}

// Ends the connections of this process at its own end `port`: threads that wait for a client go on
// at once.
void ShutDownConnections(int port) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) continue;
    const int own = storage.ss_family == AF_INET
                        ? ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port)
                    : storage.ss_family == AF_INET6
                        ? ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port)
                        : -1;
    if (own == port) ::shutdown(fd, SHUT_RDWR);
  }
}

int HttpCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kFailedPrecondition:
      return 409;
    default:
      return 500;
  }
}

StatusCode CodeOfHttp(int http) {
  switch (http) {
    case 400:
      return StatusCode::kInvalidArgument;
    case 404:
      return StatusCode::kNotFound;
    case 409:
      return StatusCode::kFailedPrecondition;
    default:
      return StatusCode::kInternal;
  }
}

void AnswerError(int http, const std::string& message, httplib::Response& response) {
  const json error = {{"error", message}};
  response.status = http;
  response.set_content(DumpJson(error), kJsonType);
}

void Answer(const Result<json>& result, httplib::Response& response) {
  if (result.ok()) {
    response.set_content(DumpJson(*result), kJsonType);
    return;
  }
  AnswerError(HttpCode(result.status()), result.status().message(), response);
}

Result<json> HandleSwitch(const ControlHandlers& handlers, const std::string& body) {
  constexpr std::string_view kRight = R"({"spec": "tp=2,dp=2"})";
  const Result<json> parsed = ParseJson(body);
  if (!parsed.ok()) return InvalidArgument("{}; right is {}", parsed.status().message(), kRight);
  const json& request = *parsed;
  if (!request.is_object() || !request.contains("spec") || !request["spec"].is_string()) {
    return InvalidArgument("expected {}", kRight);
  }
  DT_ASSIGN_OR_RETURN(const int64_t id,
                      handlers.request_switch(request["spec"].get<std::string>()));
  return json{{"id", id}};
}

bool IsIpAddress(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// What a Host header names, without its port and the brackets of an IPv6 address.
std::string HostOf(const std::string& header) {
  if (IsIpAddress(header)) return header;  // the colons of a bare IPv6 address begin no port
  if (const size_t end = header.find(']'); header.starts_with('[') && end != std::string::npos)
    return header.substr(1, end - 1);
  return header.substr(0, header.rfind(':'));
}

// Who owns a name can let it lead here, and a browser then takes this port for a site of that name,
// whose pages may read everything. So a request names this machine by what is its own: the Host
// header that does not, or none.
std::optional<std::string> ForAnotherName(const httplib::Request& request, const Address& own) {
  const auto [begin, end] = request.headers.equal_range("Host");
  for (auto header = begin; header != end; ++header) {
    const std::string host = HostOf(header->second);
    const auto is = [&host](const std::string& name) {
      return !name.empty() && ::strcasecmp(host.c_str(), name.c_str()) == 0;
    };
    if (!IsIpAddress(host) && !is("localhost") && !is(own.host) && !is(MachineName()))
      return header->second;
  }
  return std::nullopt;
}

// Whether a request comes from a page that this port did not serve, which only browsers tell.
bool FromAnotherSite(const httplib::Request& request, const Address& own) {
  if (!request.has_header("Origin")) return false;
  const std::string origin = request.get_header_value("Origin");
  for (const std::string& host :
       {own.host, std::string("127.0.0.1"), std::string("::1"), std::string("localhost")}) {
    if (origin == "http://" + Address{host, own.port}.ToString()) return false;
  }
  return true;
}

class HttpControlServer final : public ControlServer {
 public:
  HttpControlServer(Address address, ControlHandlers handlers)
      : address_(std::move(address)), handlers_(std::move(handlers)) {
    // A port of a job that has just ended can be taken again; two live jobs never share one.
    server_.set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
    server_.set_keep_alive_max_count(1);
    server_.set_keep_alive_timeout(kClientTimeout);
    server_.set_read_timeout(kClientTimeout);
    server_.set_write_timeout(kClientTimeout);
    server_.set_payload_max_length(kLongestRequest);
    server_.Post("/switch", Guarded([this](const httplib::Request& request) {
                   return HandleSwitch(handlers_, request.body);
                 }));
    server_.Get(R"(/switch/(\d{1,9}))", Guarded([this](const httplib::Request& request) {
                  return handlers_.switch_state(std::stoll(request.matches[1]));
                }));
    server_.Get("/status", Guarded([this](const httplib::Request&) -> Result<json> {
                  return handlers_.status();
                }));
  }

  // httplib serves every client that is connected before it ends, and each may be silent up to its
  // timeout; the end of a job does not wait for them.
  ~HttpControlServer() override {
    if (!thread_.joinable()) return;
    server_.stop();
    while (!ended_) {
      ShutDownConnections(address_.port);
      MonotonicClock().SleepUntil(MonotonicClock().Now() + kPoll);
    }
    thread_.join();
  }

  Status Bind() {
    const int port = address_.port == 0 ? server_.bind_to_any_port(address_.host.c_str())
                     : server_.bind_to_port(address_.host.c_str(), address_.port) ? address_.port
                                                                                  : -1;
    if (port < 0) {
      return Unavailable("cannot listen on {}: {}", address_.ToString(), WhyNotBound(address_));
    }
    address_.port = port;
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    // stop() has no effect before the thread is in its loop.
    const TimePoint deadline = MonotonicClock().Now() + kStartTimeout;
    while (!server_.is_running()) {
      if (MonotonicClock().Now() > deadline) return Unavailable("the control server did not start");
      MonotonicClock().SleepUntil(MonotonicClock().Now() + kPoll);
    }
    return {};
  }

  const Address& address() const override { return address_; }

 private:
  using Handler = std::function<Result<json>(const httplib::Request&)>;
  httplib::Server::Handler Guarded(Handler handler) {
    return [this, handler = std::move(handler)](const httplib::Request& request,
                                                httplib::Response& response) {
      if (const auto name = ForAnotherName(request, address_)) {
        return AnswerError(
            kForbidden,
            fmt::format("this is not the site {}; right is a request for {}, localhost:{} or this "
                        "machine's own name or address",
                        Shortened(*name), address_.ToString(), address_.port),
            response);
      }
      if (!FromAnotherSite(request, address_)) return Answer(handler(request), response);
      AnswerError(kForbidden,
                  fmt::format("pages of {} do not control this job; right is a request without "
                              "Origin, or one from http://{}",
                              Shortened(request.get_header_value("Origin")), address_.ToString()),
                  response);
    };
  }

  Address address_;
  ControlHandlers handlers_;
  httplib::Server server_;
  std::atomic<bool> ended_ = false;  // the thread left its loop
  std::thread thread_;
};

Result<json> AnswerOf(const Address& job, const httplib::Result& result) {
  if (!result) {
    return Unavailable("no job answers at {} ({}); is it running with --control {}?",
                       job.ToString(), httplib::to_string(result.error()), job.ToString());
  }
  const Result<json> parsed = ParseJson(result->body);
  const json body = parsed.ok() ? *parsed : json();
  if (result->status == 200 && parsed.ok()) return body;
  if (body.is_object() && body.contains("error")) {
    return Status(CodeOfHttp(result->status), body["error"].get<std::string>());
  }
  return Unavailable("{} answers, but is no DynaTrain job (HTTP {})", job.ToString(),
                     result->status);
}

httplib::Client ClientOf(const Address& job) {
  httplib::Client client(job.host, job.port);
  client.set_connection_timeout(std::chrono::seconds(5));
  client.set_read_timeout(std::chrono::seconds(10));
  return client;
}

}  // namespace

std::string Address::ToString() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Result<Address> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address{"127.0.0.1", 0};
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  if (colon != std::string::npos && colon > 0) address.host = text.substr(0, colon);
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || error != std::errc() || stop != port.data() + port.size() ||
      address.port < 0 || address.port > 65535) {
    return InvalidArgument(
        "address {}: expected HOST:PORT with a port of 0 to 65535, such as 127.0.0.1:7070",
        Shortened(text));
  }
  return address;
}

Result<std::unique_ptr<ControlServer>> ControlServer::Start(const Address& address,
                                                            ControlHandlers handlers) {
  if (!LoopbackOf(address)) {
    return InvalidArgument(
        "control address {}: only loopback addresses are served: 127.0.0.1:{}, [::1]:{} or "
        "localhost:{}",
        Shortened(address.ToString()), address.port, address.port, address.port);
  }
  auto server = std::make_unique<HttpControlServer>(address, std::move(handlers));
  DT_RETURN_IF_ERROR(server->Bind());
  return std::unique_ptr<ControlServer>(std::move(server));
}

Result<json> ControlGet(const Address& job, const std::string& path) {
  return AnswerOf(job, ClientOf(job).Get(path));
}

Result<json> ControlPost(const Address& job, const std::string& path, const json& body) {
  return AnswerOf(job, ClientOf(job).Post(path, DumpJson(body), kJsonType));
}

}  // namespace dynatrain::apps
