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

// An agent of another build may leave out what this one asks for, or say it otherwise.

const AnswerJson& part(const AnswerJson& json, const char* name) {
  static const AnswerJson none;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return found == json.end() ? none : *found;
}

const AnswerJson& item(const AnswerJson& json, size_t at) {
  static const AnswerJson none;
  return json.is_array() && at < json.size() ? json[at] : none;
}

std::string text_at(const AnswerJson& json, const char* name) {
  const AnswerJson& value = part(json, name);
  return value.is_string() ? value.get<std::string>() : "?";
}

double number_in(const AnswerJson& value) { return value.is_number() ? value.get<double>() : 0; }
double number_at(const AnswerJson& json, const char* name) { return number_in(part(json, name)); }

uint64_t count_at(const AnswerJson& json, const char* name) {
  const AnswerJson& value = part(json, name);
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

bool is_set(const AnswerJson& value) { return value.is_boolean() && value.get<bool>(); }

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
  fmt::print("agent {} on {}, process {}, for {:.0f} s, in {}{}\n", text_at(status, "version"),
             text_at(status, "host"), count_at(status, "pid"), number_at(status, "uptime_s"),
             text_at(status, "directory"), is_set(part(status, "draining")) ? ", draining" : "");
  fmt::print("{} processes, {} connections, {} of {} slots\n", count_at(status, "processes"),
             count_at(status, "connections"), count_at(part(status, "slots"), "used"),
             count_at(part(status, "slots"), "total"));
  const AnswerJson& telemetry = part(status, "telemetry");
  uint64_t refused = 0;
  for (const char* why :
       {"malformed", "not_allowed", "forged", "repeated", "out_of_time", "too_many_senders"}) {
    refused += count_at(telemetry, why);
  }
  fmt::print("telemetry on port {}: {} taken, {} refused{}\n", count_at(telemetry, "port"),
             count_at(telemetry, "taken"), refused,
             part(telemetry, "age_ms").is_number()
                 ? fmt::format(", the last one {:.0f} ms ago", number_at(telemetry, "age_ms"))
                 : "");
  if (part(telemetry, "trouble").is_string() && !text_at(telemetry, "trouble").empty()) {
    fmt::print("  {}\n", text_at(telemetry, "trouble"));
  }
  for (const AnswerJson& rail : part(status, "rails")) {
    fmt::print("rail {:<12} level {:>3}  out {:>10.3f} MB/s  in {:>10.3f} MB/s\n",
               text_at(rail, "interface"), count_at(rail, "level"),
               number_at(rail, "bytes_out_per_s") / 1e6, number_at(rail, "bytes_in_per_s") / 1e6);
  }
  fmt::print("\n{:<20} {:<20} {:>5} {:>6} {:>6} {:>6} {:>6}  {}\n", "source", "destination",
             "conns", "share", "of", "sout", "sup", "state");
  for (const AnswerJson& flow : part(status, "flows")) {
    const AnswerJson& pressed = part(flow, "backpressure");
    const AnswerJson& levels = part(flow, "levels");
    fmt::print("{:<20} {:<20} {:>5} {:>6} {:>6} {:>6.0f} {:>6.0f}  {}\n", text_at(flow, "source"),
               text_at(flow, "destination"), count_at(flow, "connections"), count_at(flow, "share"),
               1024, number_in(item(levels, 0)), number_in(item(levels, 1)),
               is_set(item(pressed, 0)) || is_set(item(pressed, 1)) ? "backpressure"
               : is_set(part(flow, "untold"))                       ? "no telemetry, own policy"
                                                                    : "");
  }
}

}  // namespace nccl_ha::tools
