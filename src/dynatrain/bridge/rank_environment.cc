#include "dynatrain/bridge/rank_environment.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>

namespace dynatrain::bridge {
namespace {

constexpr int64_t kMaxPort = 65535;
constexpr int64_t kMaxRanks = 1 << 20;

// Reads variables, with errors that name them.
class Variables {
 public:
  explicit Variables(const EnvironmentReader& read) : read_(read) {}

  std::optional<std::string> Text(const char* name) const {
    std::optional<std::string> value = read_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  Result<std::string> Needed(const char* name, const char* because) const {
    std::optional<std::string> value = Text(name);
    if (!value) return InvalidArgument("{} is set but {} is not; both are needed", because, name);
    return *value;
  }

  Result<int64_t> Number(const char* name, const char* because, int64_t low, int64_t high) const {
    DT_ASSIGN_OR_RETURN(const std::string text, Needed(name, because));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) {
      return InvalidArgument("{}={}: a whole number from {} to {} is needed", name, text, low,
                             high);
    }
    return number;
  }

 private:
  const EnvironmentReader& read_;
};

Status ReadRank(const Variables& variables, const char* rank, const char* world,
                RankEnvironment* env) {
  DT_ASSIGN_OR_RETURN(const int64_t num_ranks, variables.Number(world, rank, 1, kMaxRanks));
  DT_ASSIGN_OR_RETURN(const int64_t number, variables.Number(rank, rank, 0, num_ranks - 1));
  env->num_ranks = static_cast<int32_t>(num_ranks);
  env->rank = static_cast<RankId>(number);
  env->serves_store = env->rank == 0;
  return {};
}

Result<RankEnvironment> FromTorchrun(const Variables& variables) {
  RankEnvironment env;
  DT_RETURN_IF_ERROR(ReadRank(variables, "RANK", "WORLD_SIZE", &env));
  DT_ASSIGN_OR_RETURN(env.store.host, variables.Needed("MASTER_ADDR", "RANK"));
  DT_ASSIGN_OR_RETURN(const int64_t port, variables.Number("MASTER_PORT", "RANK", 1, kMaxPort));
  env.store.port = static_cast<uint16_t>(port);
  if (variables.Text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    env.serves_store = false;
    env.store.prefix =
        fmt::format("dynatrain/{}/{}", variables.Text("TORCHELASTIC_RUN_ID").value_or("none"),
                    variables.Text("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  }
  return env;
}

Result<RankEnvironment> FromSlurm(const Variables& variables) {
  RankEnvironment env;
  DT_RETURN_IF_ERROR(ReadRank(variables, "SLURM_PROCID", "SLURM_NTASKS", &env));
  if (const auto master = variables.Text("MASTER_ADDR")) {
    env.store.host = *master;
  } else if (const auto nodes = variables.Text("SLURM_STEP_NODELIST")) {
    env.store.host = FirstNode(*nodes);
  } else {
    DT_ASSIGN_OR_RETURN(const std::string list,
                        variables.Needed("SLURM_JOB_NODELIST", "SLURM_PROCID"));
    env.store.host = FirstNode(list);
  }
  int64_t port = 0;
  if (variables.Text("MASTER_PORT")) {
    DT_ASSIGN_OR_RETURN(port, variables.Number("MASTER_PORT", "SLURM_PROCID", 1, kMaxPort));
  } else {
    DT_ASSIGN_OR_RETURN(const int64_t job,
                        variables.Number("SLURM_JOB_ID", "SLURM_PROCID", 0, INT64_MAX));
    port = 12000 + job % 20000;
  }
  env.store.port = static_cast<uint16_t>(port);
  return env;
}

}  // namespace

EnvironmentReader ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

Result<std::optional<RankEnvironment>> ReadRankEnvironment(const EnvironmentReader& read) {
  const Variables variables(read);
  RankEnvironment env;
  if (variables.Text("RANK")) {
    DT_ASSIGN_OR_RETURN(env, FromTorchrun(variables));
  } else if (variables.Text("SLURM_PROCID")) {
    DT_ASSIGN_OR_RETURN(env, FromSlurm(variables));
  } else {
    return std::optional<RankEnvironment>();
  }
  env.gloo.interface = variables.Text("GLOO_SOCKET_IFNAME").value_or("");
  return std::optional<RankEnvironment>(std::move(env));
}

std::string FirstNode(const std::string& node_list) {
  const size_t bracket = node_list.find('[');
  if (bracket == std::string::npos || bracket > node_list.find(',')) {
    return node_list.substr(0, node_list.find(','));
  }
  const size_t end = node_list.find_first_of(",-]", bracket);
  const size_t close = node_list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) return node_list;
  const size_t rest_end = node_list.find_first_of(",[", close);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1) +
         node_list.substr(close + 1,
                          rest_end == std::string::npos ? rest_end : rest_end - close - 1);
}

Result<std::string> AddressTowards(const StoreAddress& store) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(store.port);
  if (const int error = ::getaddrinfo(store.host.c_str(), port.c_str(), &hints, &found)) {
    return Unavailable("the host {} of the store is not known here: {}", store.host,
                       ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> info(found, ::freeaddrinfo);
  const int fd = ::socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ResourceExhausted("no socket: {}", std::strerror(errno));
  sockaddr_storage local = {};
  socklen_t length = sizeof(local);
  const bool ok = ::connect(fd, info->ai_addr, info->ai_addrlen) == 0 &&
                  ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0;
  const int error = errno;
  ::close(fd);
  if (!ok) {
    return Unavailable("no way from here to {} port {}: {}", store.host, store.port,
                       std::strerror(error));
  }
  char host[NI_MAXHOST];
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&local), length, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return Unavailable("the local address towards {} cannot be told", store.host);
  }
  return std::string(host);
}

}  // namespace dynatrain::bridge
