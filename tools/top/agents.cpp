#include "tools/top/agents.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "tools/common/process.h"
#include "tools/common/resolve.h"
#include "tools/trace/sources.h"

namespace nccl_ha::tools {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

/// More than the counters of all processes of a host.
constexpr size_t answer_max = size_t{256} << 20;
constexpr std::string_view end_of_head = "\r\n\r\n";

/// One question to one agent, a step at each event of its socket.
class Question {
 public:
  explicit Question(const AgentPlace& place) : place_(place) {
    auto found = resolve(place.host, place.port);
    if (!found) {
      end(found.error().message());
      return;
    }
    addresses_ = std::move(*found);
    next_ = addresses_.get();
    request_ =
        fmt::format("GET /counters HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", place.host);
    dial();
  }

  bool ended() const { return ended_; }
  pollfd wanted() const {
    return {socket_.get(), static_cast<short>(sent_ < request_.size() ? POLLOUT : POLLIN), 0};
  }
  void on_event() {
    if (sent_ < request_.size()) {
      send_on();
    } else {
      receive_on();
    }
  }
  void end(const std::string& why) {
    ended_ = true;
    error_ = why;
    socket_ = Fd();
  }
  /// Of one that has ended.
  void add_to(CounterReading& reading) const {
    const std::string name = fmt::format("agent of {}, port {}", place_.host, place_.port);
    const auto complain = [&](const std::string& why) {
      reading.unreadable.push_back(fmt::format("{}: {}", name, why));
    };
    if (!error_.empty()) {
      complain(error_);
      return;
    }
    auto body = http_body(answer_);
    if (!body) {
      complain(body.error().message());
      return;
    }
    const auto bytes = std::as_bytes(std::span(*body));
    const auto parts = parse_bundle(bytes);
    if (!parts) {
      complain(parts.error().message());
      return;
    }
    for (const auto& part : *parts) {
      auto read = read_dumps(name, {{part.begin(), part.end()}});
      if (!read) {
        complain(read.error().message());
        continue;
      }
      for (TraceSource& source : *read) {
        // By its name the same file is found again in the next reading.
        std::string path =
            fmt::format("{}: {}-{}", name, source.snapshot.pid, source.snapshot.instance);
        reading.files.push_back({std::move(path), true, std::move(source.snapshot)});
      }
    }
  }

 private:
  /// The next address that can be tried.
  void dial() {
    while (next_ != nullptr) {
      const addrinfo& at = *next_;
      next_ = next_->ai_next;
      socket_ = Fd(socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (socket_ &&
          (connect(socket_.get(), at.ai_addr, at.ai_addrlen) == 0 || errno == EINPROGRESS)) {
        return;
      }
      refused_ = errno;
    }
    end(fmt::format("cannot be reached: {}", std::strerror(refused_)));
  }
  void send_on() {
    const ssize_t sent =
        send(socket_.get(), request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<size_t>(sent);
    } else if (errno != EAGAIN && errno != EINTR) {
      refused_ = errno;
      sent_ = 0;
      dial();
    }
  }
  void receive_on() {
    char bytes[65536];
    const ssize_t got = recv(socket_.get(), bytes, sizeof bytes, 0);
    if (got > 0) {
      answer_.append(bytes, static_cast<size_t>(got));
      if (answer_.size() > answer_max) {
        end("its answer is too long");
      }
    } else if (got == 0) {
      ended_ = true;
      socket_ = Fd();
    } else if (errno != EAGAIN && errno != EINTR) {
      end(fmt::format("ended in the middle of its answer: {}", std::strerror(errno)));
    }
  }

  const AgentPlace place_;
  Addresses addresses_;
  const addrinfo* next_ = nullptr;
  Fd socket_;
  int refused_ = 0;  ///< errno of the last address
  std::string request_;
  size_t sent_ = 0;
  std::string answer_;
  std::string error_;
  bool ended_ = false;
};

/// For poll(2).
int milliseconds_until(SteadyTime until) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
}

}  // namespace

Result<std::string> http_body(const std::string& answer) {
  const size_t head = answer.find(end_of_head);
  if (!answer.starts_with("HTTP/1.") || head == std::string::npos) {
    return fail(Errc::remote, "what answers there is no agent");
  }
  const std::string first = answer.substr(0, answer.find("\r\n"));
  const std::string status = first.substr(std::min(first.size(), first.find(' ')));
  if (!status.starts_with(" 200 ")) {
    return fail(Errc::remote,
                fmt::format("it answers \"{}\": it may be an agent of another version",
                            status.substr(std::min<size_t>(status.size(), 1))));
  }
  // Names of headers are compared as the agent writes them.
  constexpr std::string_view length_is = "\r\nContent-Length: ";
  const size_t at = answer.find(length_is);
  const std::string body = answer.substr(head + end_of_head.size());
  if (at == std::string::npos || at > head ||
      answer.substr(at + length_is.size(), answer.find("\r\n", at + 2) - at - length_is.size()) !=
          std::to_string(body.size())) {
    return fail(Errc::remote, "its answer was cut short");
  }
  return body;
}

CounterReading read_agents(const std::vector<AgentPlace>& agents, std::chrono::milliseconds limit) {
  const SteadyTime until = std::chrono::steady_clock::now() + limit;
  std::vector<std::unique_ptr<Question>> questions;
  questions.reserve(agents.size());
  for (const AgentPlace& agent : agents) {
    questions.push_back(std::make_unique<Question>(agent));
  }
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<Question*> whose;
    for (const auto& question : questions) {
      if (!question->ended()) {
        waiting.push_back(question->wanted());
        whose.push_back(question.get());
      }
    }
    const int left = milliseconds_until(until);
    if (whose.empty() || left == 0) {
      break;
    }
    poll(waiting.data(), waiting.size(), left);
    for (size_t i = 0; i < whose.size(); ++i) {
      if (waiting[i].revents != 0) {
        whose[i]->on_event();
      }
    }
  }
  CounterReading reading;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  reading.time_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  for (const auto& question : questions) {
    if (!question->ended()) {
      question->end(fmt::format("no answer within {} ms", limit.count()));
    }
    question->add_to(reading);
  }
  return reading;
}

}  // namespace nccl_ha::tools
