#include "tools/agent/ask_agent.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "actors/agent_protocol.h"
#include "runtime/telemetry/agent_directory.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

using AnswerJson = nlohmann::json;

constexpr size_t answer_max = size_t{64} << 20;

Error no_answer(const std::string& path, const char* what) {
  return fail(Errc::remote, fmt::format("the agent at {}: {}", path, what), errno);
}

/// The text of all pieces, up to their end.
Result<std::string> read_status(int fd, const std::string& path) {
  AgentReader reader;
  std::string text;
  std::vector<std::byte> input(65536);
  while (text.size() < answer_max) {
    const ssize_t got = recv(fd, input.data(), input.size(), 0);
    if (got <= 0) {
      errno = got == 0 ? 0 : errno;
      return no_answer(path, "it does not answer");
    }
    reader.feed(std::span(input).first(static_cast<size_t>(got)));
    while (const auto message = reader.next()) {
      if (message->type == AgentMessage::status_end) {
        return text;
      }
      if (message->type == AgentMessage::refuse) {
        const auto refusal = decode_agent_refusal(message->payload);
        errno = 0;
        return no_answer(path, refusal ? refusal->text.c_str() : "it refuses");
      }
      text.append(reinterpret_cast<const char*>(message->payload.data()), message->payload.size());
    }
    if (reader.broken()) {
      break;
    }
  }
  errno = 0;
  return no_answer(path, "it says something that no agent says");
}

}  // namespace

Result<nlohmann::json> ask_agent(const std::string& directory) {
  const std::string chosen = AgentDirectory::chosen(directory);
  auto place = AgentDirectory::open(chosen);
  if (!place) {
    return place.error();
  }
  const std::string path = place->socket_path();
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const timeval limit{5, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return no_answer(path, "it does not run");
  }
  const auto question = encode_agent(AgentMessage::ask_status, 0);
  if (send(fd.get(), question.data(), question.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(question.size())) {
    return no_answer(path, "it cannot be asked");
  }
  const auto text = read_status(fd.get(), path);
  if (!text) {
    return text.error();
  }
  AnswerJson answer = AnswerJson::parse(*text, nullptr, false);
  if (!answer.is_object()) {
    errno = 0;
    return no_answer(path, "its answer is no status");
  }
  return answer;
}

void print_agent(const nlohmann::json& status) {
  const auto number = [](const AnswerJson& value) { return value.get<uint64_t>(); };
  fmt::print(
      "agent {} on {}, process {}, for {:.0f} s, in {}{}\n", status["version"].get<std::string>(),
      status["host"].get<std::string>(), number(status["pid"]), status["uptime_s"].get<double>(),
      status["directory"].get<std::string>(), status["draining"].get<bool>() ? ", draining" : "");
  fmt::print("{} processes, {} connections, {} of {} slots\n", number(status["processes"]),
             number(status["connections"]), number(status["slots"]["used"]),
             number(status["slots"]["total"]));
  const AnswerJson& telemetry = status["telemetry"];
  fmt::print("telemetry on port {}: {} taken, {} refused{}\n", number(telemetry["port"]),
             number(telemetry["taken"]),
             number(telemetry["malformed"]) + number(telemetry["not_allowed"]) +
                 number(telemetry["forged"]) + number(telemetry["repeated"]) +
                 number(telemetry["out_of_time"]) + number(telemetry["too_many_senders"]),
             telemetry.contains("age_ms")
                 ? fmt::format(", the last one {:.0f} ms ago", telemetry["age_ms"].get<double>())
                 : "");
  if (const auto trouble = telemetry["trouble"].get<std::string>(); !trouble.empty()) {
    fmt::print("  {}\n", trouble);
  }
  for (const AnswerJson& rail : status["rails"]) {
    fmt::print("rail {:<12} level {:>3}  out {:>10.3f} MB/s  in {:>10.3f} MB/s\n",
               rail["interface"].get<std::string>(), rail.value("level", 0),
               rail.value("bytes_out_per_s", 0.0) / 1e6, rail.value("bytes_in_per_s", 0.0) / 1e6);
  }
  fmt::print("\n{:<20} {:<20} {:>5} {:>6} {:>6} {:>6} {:>6}  {}\n", "source", "destination",
             "conns", "share", "of", "sout", "sup", "state");
  for (const AnswerJson& flow : status["flows"]) {
    const bool pressed = flow["backpressure"][0].get<bool>() || flow["backpressure"][1].get<bool>();
    fmt::print("{:<20} {:<20} {:>5} {:>6} {:>6} {:>6.0f} {:>6.0f}  {}\n",
               flow["source"].get<std::string>(), flow["destination"].get<std::string>(),
               number(flow["connections"]), number(flow["share"]), 1024,
               flow["levels"][0].get<double>(), flow["levels"][1].get<double>(),
               pressed                      ? "backpressure"
               : flow["untold"].get<bool>() ? "no telemetry, own policy"
                                            : "");
  }
}

}  // namespace nccl_ha::tools
