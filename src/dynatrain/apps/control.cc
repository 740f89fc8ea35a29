#include "dynatrain/apps/control.h"

#include <charconv>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

namespace dynatrain::apps {
namespace {

using nlohmann::json;

constexpr char kJsonType[] = "application/json";
constexpr Duration kStartTimeout = std::chrono::seconds(10);

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
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

void Answer(const Result<json>& result, httplib::Response& response) {
  if (result.ok()) {
    response.set_content(result->dump(), kJsonType);
    return;
  }
  response.status = HttpCode(result.status());
  response.set_content(json{{"error", result.status().message()}}.dump(), kJsonType);
}

Result<json> HandleSwitch(const ControlHandlers& handlers, const std::string& body) {
  const json request = json::parse(body, nullptr, false);
  if (!request.is_object() || !request.contains("spec") || !request["spec"].is_string()) {
    return InvalidArgument(R"(expected {{"spec": "tp=2,dp=2"}})");
  }
  DT_ASSIGN_OR_RETURN(const int64_t id,
                      handlers.request_switch(request["spec"].get<std::string>()));
  return json{{"id", id}};
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
    server_.Post("/switch", [this](const httplib::Request& request, httplib::Response& response) {
      Answer(HandleSwitch(handlers_, request.body), response);
    });
    server_.Get(R"(/switch/(\d{1,9}))",
                [this](const httplib::Request& request, httplib::Response& response) {
                  Answer(handlers_.switch_state(std::stoll(request.matches[1])), response);
                });
    server_.Get("/status", [this](const httplib::Request&, httplib::Response& response) {
      Answer(handlers_.status(), response);
    });
  }

  ~HttpControlServer() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status Bind() {
    const int port = address_.port == 0 ? server_.bind_to_any_port(address_.host.c_str())
                     : server_.bind_to_port(address_.host.c_str(), address_.port) ? address_.port
                                                                                  : -1;
    if (port < 0) {
      return Unavailable(
          "cannot listen on {}: the port is in use or not allowed; "
          "choose another, or port 0 for a free one",
          address_.ToString());
    }
    address_.port = port;
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() has no effect before the thread is in its loop.
    const TimePoint deadline = MonotonicClock().Now() + kStartTimeout;
    while (!server_.is_running()) {
      if (MonotonicClock().Now() > deadline) return Unavailable("the control server did not start");
      MonotonicClock().SleepUntil(MonotonicClock().Now() + std::chrono::milliseconds(1));
    }
    return {};
  }

  const Address& address() const override { return address_; }

 private:
  Address address_;
  ControlHandlers handlers_;
  httplib::Server server_;
  std::thread thread_;
};

Result<json> AnswerOf(const Address& job, const httplib::Result& result) {
  if (!result) {
    return Unavailable("no job answers at {} ({}); is it running with --control {}?",
                       job.ToString(), httplib::to_string(result.error()), job.ToString());
  }
  const json body = json::parse(result->body, nullptr, false);
  if (result->status == 200 && !body.is_discarded()) return body;
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

Result<Address> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address{"127.0.0.1", 0};
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  if (colon != std::string::npos && colon > 0) address.host = text.substr(0, colon);
  const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || error != std::errc() || stop != port.data() + port.size() ||
      address.port < 0 || address.port > 65535) {
    return InvalidArgument(
        "address {}: expected HOST:PORT with a port of 0 to 65535, such as 127.0.0.1:7070", text);
  }
  return address;
}

Result<std::unique_ptr<ControlServer>> ControlServer::Start(const Address& address,
                                                            ControlHandlers handlers) {
  if (!IsLoopback(address.host)) {
    return InvalidArgument(
        "control address {}: only loopback addresses are served, such as 127.0.0.1:{}",
        address.ToString(), address.port);
  }
  auto server = std::make_unique<HttpControlServer>(address, std::move(handlers));
  DT_RETURN_IF_ERROR(server->Bind());
  return std::unique_ptr<ControlServer>(std::move(server));
}

Result<json> ControlGet(const Address& job, const std::string& path) {
  return AnswerOf(job, ClientOf(job).Get(path));
}

Result<json> ControlPost(const Address& job, const std::string& path, const json& body) {
  return AnswerOf(
      job, ClientOf(job).Post(path, body.dump(-1, ' ', false, json::error_handler_t::replace),
                              kJsonType));
}

}  // namespace dynatrain::apps
