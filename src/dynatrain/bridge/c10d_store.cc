#include "dynatrain/bridge/c10d_store.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "dynatrain/bridge/deadline.h"
#include "dynatrain/bridge/fence.h"
#include "dynatrain/bridge/numeric_names.h"
#include "dynatrain/bridge/worker_thread.h"

namespace dynatrain::bridge {
namespace {

using Bytes = std::vector<uint8_t>;

// Every stored value starts with kMark, so kNothing never equals one.
constexpr char kMark = '=';
// A process that was stopped for a while finds its deadline passed before its own threads have run
// again.
constexpr Duration kThawGrace = std::chrono::seconds(2);
const Bytes kNothing = {'?'};

Bytes Encode(const std::string& value) {
  Bytes bytes(value.size() + 1);
  bytes[0] = kMark;
  std::memcpy(bytes.data() + 1, value.data(), value.size());
  return bytes;
}

Result<std::string> Decode(const std::string& key, const Bytes& bytes) {
  if (bytes.empty() || bytes[0] != kMark) {
    return DataLoss("store key {} holds a value that this program did not write", key);
  }
  return std::string(bytes.begin() + 1, bytes.end());
}

// c10d has deadlines for waits alone, so every call runs on a thread that can be left behind. Calls
// own what they use.
class C10dStore final : public elastic::Store {
 public:
  C10dStore(c10::intrusive_ptr<c10d::Store> store, Duration answer_timeout)
      : store_(std::move(store)), answer_timeout_(answer_timeout) {}

  Status Set(const std::string& key, const std::string& value) override {
    return Call<bool>("set", key, answer_timeout_,
                      [store = store_, key, value] {
                        store->set(key, Encode(value));
                        // A set is not acknowledged on the wire; the answer to a question behind it
                        // is.
                        return store->check({key});
                      })
        .status();
  }

  Result<std::optional<std::string>> TryGet(const std::string& key) override {
    return Call<std::optional<std::string>>("get", key, answer_timeout_,
                                            [store = store_, key] { return Read(*store, key); });
  }

  Result<std::string> Wait(const std::string& key, Duration timeout) override {
    return Call<std::string>(
        "wait for", key, timeout + answer_timeout_,
        [store = store_, key, timeout] { return ReadWhenSet(*store, key, timeout); });
  }

  Result<std::string> SetIfAbsent(const std::string& key, const std::string& value) override {
    return Call<std::string>("set if absent", key, answer_timeout_, [store = store_, key, value] {
      return Decode(key, store->compareSet(key, Bytes{}, Encode(value)));
    });
  }

  Status Delete(const std::string& key) override {
    return Call<bool>("delete", key, answer_timeout_,
                      [store = store_, key] { return store->deleteKey(key); })
        .status();
  }

  Result<std::unique_ptr<elastic::Store>> Clone() override {
    auto cloned = Call<c10::intrusive_ptr<c10d::Store>>(
        "clone", "connection", answer_timeout_, [store = store_] { return store->clone(); });
    DT_ASSIGN_OR_RETURN(c10::intrusive_ptr<c10d::Store> store, std::move(cloned));
    return std::unique_ptr<elastic::Store>(
        std::make_unique<C10dStore>(std::move(store), answer_timeout_));
  }

 private:
  // One round trip: a compare-and-set that can never set answers with the value, or with its own
  // question.
  static Result<std::optional<std::string>> Read(c10d::Store& store, const std::string& key) {
    const Bytes bytes = store.compareSet(key, kNothing, kNothing);
    if (bytes == kNothing) return std::optional<std::string>();
    DT_ASSIGN_OR_RETURN(std::string value, Decode(key, bytes));
    return std::optional<std::string>(std::move(value));
  }

  static Result<std::string> ReadWhenSet(c10d::Store& store, const std::string& key,
                                         Duration timeout) {
    const Deadline deadline(timeout);
    while (true) {
      DT_ASSIGN_OR_RETURN(std::optional<std::string> value, Read(store, key));
      if (value.has_value()) return *std::move(value);
      if (deadline.passed()) {
        return DeadlineExceeded("store: wait for {}: not set within {:.3f} s", key,
                                ToSeconds(timeout));
      }
      // Why it ended shows at the next read.
      static_cast<void>(Fence("wait", [&] { store.wait({key}, ToMillis(deadline.left())); }).ok());
    }
  }

  template <class T, class F>
  Result<T> Call(std::string_view what, std::string_view key, Duration limit, F f) {
    if (!dead_.ok()) return dead_;
    std::string doing = fmt::format("store: {} {}", what, key);
    auto task = std::make_shared<std::packaged_task<Result<T>()>>(
        [doing, f = std::move(f)] { return FenceResult(doing, f); });
    std::future<Result<T>> answer = task->get_future();
    worker_.Post([task] { (*task)(); });
    if (answer.wait_for(limit) != std::future_status::ready &&
        answer.wait_for(kThawGrace) != std::future_status::ready) {
      worker_.Abandon();
      dead_ = Unavailable("{}: the server gave no answer within {:.1f} s", doing, ToSeconds(limit));
      return dead_;
    }
    Result<T> result = answer.get();
    if (!result.ok() && result.status().code() == StatusCode::kUnavailable) dead_ = result.status();
    return result;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const Duration answer_timeout_;
  Status dead_;  // why the connection is lost
  WorkerThread worker_;
};

struct Socket {
  int fd = -1;
  uint16_t port = 0;
};

// A listening socket on exactly the address asked for: TCPStore by itself listens on all
// interfaces.
Result<Socket> Listen(const StoreAddress& bind_to) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(bind_to.host.c_str(), std::to_string(bind_to.port).c_str(), &hints, &found) !=
      0) {
    return InvalidArgument("store address {}: not a numeric IP address", bind_to.host);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> info(found, freeaddrinfo);
  const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ResourceExhausted("store: no socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_storage actual = {};
  socklen_t length = sizeof(actual);
  if (bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&actual), &length) != 0) {
    const int error = errno;
    close(fd);
    if (error == EADDRINUSE) {
      return Unavailable(
          "store: port {} of {} is in use by another process; name a free port, or 0 to take one",
          bind_to.port, bind_to.host);
    }
    return Unavailable("store: cannot listen on {} port {}: {}", bind_to.host, bind_to.port,
                       std::strerror(error));
  }
  char port[NI_MAXSERV];
  getnameinfo(reinterpret_cast<sockaddr*>(&actual), length, nullptr, 0, port, sizeof(port),
              NI_NUMERICSERV);
  return Socket{.fd = fd, .port = static_cast<uint16_t>(std::stoi(port))};
}

}  // namespace

StoreServer::StoreServer(StoreAddress address, c10::intrusive_ptr<c10d::Store> store)
    : address_(std::move(address)), store_(std::move(store)) {}

StoreServer::~StoreServer() = default;

Result<std::unique_ptr<StoreServer>> StoreServer::Start(const StoreAddress& bind) {
  UseNumericNames();
  DT_ASSIGN_OR_RETURN(const Socket socket, Listen(bind));
  c10d::TCPStoreOptions options;
  options.port = socket.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.fd;
  const StoreAddress address = {.host = bind.host, .port = socket.port};
  auto started =
      FenceResult(fmt::format("start the store on {} port {}", address.host, address.port), [&] {
        return c10::intrusive_ptr<c10d::Store>(
            c10::make_intrusive<c10d::TCPStore>(bind.host, options));
      });
  DT_ASSIGN_OR_RETURN(c10::intrusive_ptr<c10d::Store> store, std::move(started));
  return std::unique_ptr<StoreServer>(new StoreServer(address, std::move(store)));
}

Result<int64_t> StoreServer::KeyCount() {
  return FenceResult("count the store's keys", [&] { return store_->getNumKeys(); });
}

Result<c10::intrusive_ptr<c10d::Store>> ConnectC10dStore(const StoreAddress& address,
                                                         Duration timeout) {
  UseNumericNames();
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.waitWorkers = false;
  options.timeout = ToMillis(timeout);
  return FenceResult(fmt::format("connect to the store at {} port {}", address.host, address.port),
                     [&] {
                       c10::intrusive_ptr<c10d::Store> store =
                           c10::make_intrusive<c10d::TCPStore>(address.host, options);
                       if (address.prefix.empty()) return store;
                       return c10::intrusive_ptr<c10d::Store>(
                           c10::make_intrusive<c10d::PrefixStore>(address.prefix, store));
                     });
}

Result<std::unique_ptr<elastic::Store>> ConnectStore(const StoreAddress& address,
                                                     Duration timeout) {
  auto store = ConnectC10dStore(address, timeout);
  if (!store.ok()) return Status(StatusCode::kUnavailable, store.status().message());
  return WrapStore(*std::move(store), timeout);
}

std::unique_ptr<elastic::Store> WrapStore(c10::intrusive_ptr<c10d::Store> store,
                                          Duration answer_timeout) {
  return std::make_unique<C10dStore>(std::move(store), answer_timeout);
}

}  // namespace dynatrain::bridge
