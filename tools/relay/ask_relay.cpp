#include "tools/relay/ask_relay.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "tools/agent/socket_point.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

/// The body of what a node answers.
Result<std::string> get_page(const SocketPoint& point, const std::string& path) {
  const auto silent = [&](const char* what) {
    return fail(Errc::remote, fmt::format("the relay node's page at {}: {}", point.text(), what),
                errno);
  };
  const sockaddr_storage address = point.to_sockaddr();
  const Fd fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{5, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const socklen_t length =
      address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return silent("it does not run there (HA_NCCL_MESH_PAGE)");
  }
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, point.text());
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return silent("it cannot be asked");
  }
  std::string answer;
  constexpr size_t answer_limit = size_t{64} << 20;
  while (answer.size() < answer_limit && read_some(fd.get(), answer)) {
  }
  const size_t body = answer.find("\r\n\r\n");
  errno = 0;
  if (!answer.starts_with("HTTP/1.1 200 ") || body == std::string::npos) {
    return silent("it does not answer as a relay node does");
  }
  return answer.substr(body + 4);
}

}  // namespace

Result<nlohmann::json> ask_relay(const std::string& point) {
  const auto parsed = parse_point(point);
  if (!parsed) {
    return parsed.error();
  }
  const auto text = get_page(*parsed, "/status.json");
  if (!text) {
    return text.error();
  }
  nlohmann::json answer = nlohmann::json::parse(*text, nullptr, false);
  if (!answer.is_object() || !answer.contains("counters") || !answer.contains("sessions")) {
    return fail(Errc::remote, fmt::format("{} is no relay node's page", point));
  }
  return answer;
}

void print_relay(const nlohmann::json& status) {
  const nlohmann::json& counters = status["counters"];
  const auto count = [&](const char* name) { return counters.value(name, uint64_t{0}); };
  fmt::print("relay node {} on {}, process {}, for {:.0f} s, {}{}\n",
             status.value("node", std::string()), status.value("host", std::string()),
             status.value("pid", 0), status.value("uptime_s", 0.0),
             status.value("relays", false) ? "relays" : "does not relay",
             count("draining") != 0 ? ", draining" : "");
  const nlohmann::json discovery = status.value("discovery", nlohmann::json::object());
  fmt::print("{} hosts known; {} packets without a key of ours, {} that came before\n",
             discovery.value("hosts", 0), discovery.value("forged", uint64_t{0}),
             discovery.value("repeated", uint64_t{0}));
  const nlohmann::json neighbours = status.value("neighbours", nlohmann::json::array());
  if (!neighbours.empty()) {
    fmt::print("  {:<20} {:<16} {:<28}\n", "neighbour", "interface", "address");
  }
  for (const nlohmann::json& one : neighbours) {
    fmt::print("  {:<20} {:<16} {:<28}{}\n", one.value("host", std::string()),
               one.value("interface", std::string()), one.value("address", std::string()),
               one.value("both_ways", false) ? "" : "  does not hear this host");
  }
  fmt::print(
      "{} paths now, {} begun, {} requests refused, {} unauthenticated, {} frames, {:.3f} MB\n",
      count("sessions"), count("opened"), count("refused"), count("unauthenticated"),
      count("frames"), static_cast<double>(count("bytes")) / 1e6);
  fmt::print("memory {:.1f} of {:.1f} MB\n", static_cast<double>(count("pool_bytes")) / 1e6,
             static_cast<double>(status.value("pool_bytes", uint64_t{0})) / 1e6);
  if (!status["sessions"].empty()) {
    fmt::print("  {:<20} {:<20} {:>5} {:>13} {:>13}\n", "from", "to", "slots", "MB there",
               "MB back");
  }
  for (const nlohmann::json& session : status["sessions"]) {
    fmt::print("  {:<20} {:<20} {:>5}", session.value("from", std::string()),
               session.value("to", std::string()), session.value("slots", 0));
    for (const nlohmann::json& direction : session["directions"]) {
      fmt::print(" {:>13.3f}", static_cast<double>(direction.value("bytes", uint64_t{0})) / 1e6);
    }
    fmt::print("  {}\n", session.value("open", false) ? "" : "being set up");
    for (const nlohmann::json& hop : session.value("hops", nlohmann::json::array())) {
      fmt::print("    by {}\n", hop.is_string() ? hop.get<std::string>() : std::string());
    }
  }
}

}  // namespace nccl_ha::tools
