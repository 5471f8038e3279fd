#include "tools/lab/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace nccl_ha::tools::lab {
namespace {

using nlohmann::json;

constexpr size_t request_max = 65536;
/// A line longer than this is passed on in pieces.
constexpr size_t line_max = 65536;
/// The check of a lab takes about a second for each pair of ports, on a busy machine several.
constexpr auto check_limit = std::chrono::seconds(120);

void write_all(FILE* to, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

std::string describe(const LinkState& state, size_t direction) {
  const Direction& way = state.direction[direction];
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (!state.carrier) {
    add("pulled");
  }
  if (state.mtu > 0) {
    add(fmt::format("MTU {}", state.mtu));
  }
  if (way.blocked) {
    add("silent");
  }
  if (way.loss > 0) {
    add(fmt::format("loses {}%", way.loss * 100.0 / loss_whole));
  }
  if (way.bits_per_second > 0) {
    add(fmt::format("{} Mbit/s", static_cast<double>(way.bits_per_second) / 1e6));
  }
  return text.empty() ? "good" : text;
}

}  // namespace

void Supervisor::say(const std::string& text) const {
  if (!options_.quiet) {
    std::fprintf(stderr, "lab: %s\n", text.c_str());
  }
}

int Supervisor::run(Backend& backend, Precheck* precheck) {
  backend_ = &backend;
  precheck_ = precheck;
  states_.resize(topology_.links.size());
  BackendEvents events;
  events.ready = [this] { begin(); };
  events.output = [this](size_t host, Stream stream, std::string_view bytes) {
    if (checking_) {
      precheck_->output(host, stream, bytes);
    } else {
      pass_on(host, stream, bytes);
    }
  };
  events.ended = [this](size_t, uint64_t id, int status) {
    if (checking_) {
      precheck_->ended(id, status);
    } else {
      job_ended(id, status);
    }
  };
  events.broken = [this](const Error& error) { give_up(error); };
  events.asked = [this](const std::string& line) { return serve(line).dump() + "\n"; };
  for (const auto& opened :
       {open_signals(), backend.start(loop_, std::move(events)), open_control()}) {
    if (!opened) {
      give_up(opened.error());
      return status_;
    }
  }
  loop_.at(loop_.now() + Duration(static_cast<int64_t>(options_.timeout_s * 1e9)), [this] {
    std::fprintf(stderr, "lab: the time limit of %g s (--timeout) is over\n", options_.timeout_s);
    finish(status_timed_out);
  });
  loop_.run();
  flush_rests();
  return status_;
}

Result<void> Supervisor::open_signals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&wanted, number);
  }
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signals_ = Fd(signalfd(-1, &wanted, SFD_CLOEXEC));
  if (!signals_) {
    return fail(Errc::system, "cannot watch for signals", errno);
  }
  loop_.watch(signals_.get(), [this] {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) == sizeof info) {
      finish(128 + static_cast<int>(info.ssi_signo));
    }
  });
  return {};
}

Result<void> Supervisor::open_control() {
  const std::string path = directory_.control();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  control_ = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!control_ ||
      bind(control_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(control_.get(), 16) != 0) {
    return fail(Errc::system, fmt::format("cannot listen on {}", path), errno);
  }
  loop_.watch(control_.get(), [this] { accept_request(); });
  return {};
}

void Supervisor::begin() {
  say(fmt::format("'{}' is up: {} hosts, {}", directory_.path().filename().string(),
                  topology_.hosts.size(), topology_.name));
  if (precheck_ == nullptr) {
    launch();
    return;
  }
  checking_ = true;
  loop_.at(loop_.now() + check_limit, [this] {
    if (checking_) {
      give_up(fail(Errc::timed_out, fmt::format("{} did not end within {} s, so the lab itself is "
                                                "broken",
                                                precheck_->doing(), check_limit.count())));
    }
  });
  auto started = precheck_->start(*backend_, [this](std::optional<Error> wrong) {
    checking_ = false;
    if (wrong) {
      give_up(*wrong);
    } else {
      say("another program could use the lab: every link was tried");
      launch();
    }
  });
  if (!started) {
    give_up(started.error());
  }
}

void Supervisor::launch() {
  launched_ = loop_.now();
  jobs_.resize(options_.hosts.size());
  for (size_t rank = 0; rank < options_.hosts.size(); ++rank) {
    HostCommand command;
    command.arguments = options_.command;
    command.environment = options_.environment;
    auto& environment = command.environment;
    environment["RANK"] = std::to_string(rank);
    environment["WORLD_SIZE"] = std::to_string(options_.hosts.size());
    environment["LOCAL_RANK"] = "0";
    environment["LOCAL_WORLD_SIZE"] = "1";
    environment["MASTER_ADDR"] = topology_.management_address(options_.hosts.front());
    environment["MASTER_PORT"] = "29500";
    environment["NHA_LAB_HOST"] = topology_.hosts[options_.hosts[rank]];
    environment["NHA_LAB"] = directory_.path().filename();
    auto id = backend_->run(options_.hosts[rank], command);
    if (!id) {
      give_up(id.error());
      return;
    }
    jobs_[rank].id = *id;
  }
  for (const ScriptStep& step : options_.script) {
    loop_.at(launched_ + step.after, [this, request = step.request] {
      if (auto applied = apply(request); !applied) {
        give_up(fail(applied.code(),
                     fmt::format("script: '{}': {}", to_text(request), applied.error().message())));
      }
    });
  }
}

void Supervisor::job_ended(uint64_t id, int status) {
  size_t running = 0;
  int worst = 0;
  std::string text;
  for (size_t rank = 0; rank < jobs_.size(); ++rank) {
    Job& job = jobs_[rank];
    if (job.id == id) {
      job.status = status;
    }
    running += job.status ? 0 : 1;
    if (!job.status) {
      continue;
    }
    // A host that was killed on request has ended as it should.
    if (worst == 0 && !job.killed) {
      worst = *job.status;
    }
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", topology_.hosts[options_.hosts[rank]],
                        job.killed ? "killed" : std::to_string(*job.status));
  }
  if (running == 0) {
    say("ended; status " + text);
    finish(worst);
  }
}

void Supervisor::pass_on(size_t host, Stream stream, std::string_view bytes) {
  Lines& lines = lines_[{host, stream}];
  lines.rest += bytes;
  std::string text;
  for (const std::string& line : take_lines(lines.rest)) {
    text += fmt::format("[{}] {}\n", topology_.hosts[host], line);
  }
  if (lines.rest.size() > line_max) {
    text += fmt::format("[{}] {}\n", topology_.hosts[host], std::exchange(lines.rest, {}));
  }
  write_all(stream == Stream::out ? stdout : stderr, text);
}

void Supervisor::flush_rests() {
  for (auto& [key, lines] : lines_) {
    if (!lines.rest.empty()) {
      pass_on(key.first, key.second, "\n");
    }
  }
}

void Supervisor::finish(int status) {
  if (!loop_.stopped()) {
    status_ = status;
    loop_.stop();
  }
}

void Supervisor::give_up(const Error& error) {
  std::fprintf(stderr, "lab: %s\n", error.message().c_str());
  finish(status_lab_broken);
}

void Supervisor::accept_request() {
  Fd client(accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client) {
    return;
  }
  const int fd = client.get();
  clients_.emplace(fd, std::pair(std::move(client), std::string()));
  loop_.watch(fd, [this, fd] {
    std::string& text = clients_[fd].second;
    char buffer[4096];
    const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    const size_t end = text.find('\n');
    if (end != std::string::npos) {
      const std::string answer = serve(text.substr(0, end)).dump() + "\n";
      // An answer is smaller than a socket's buffer; whoever does not read it has waived it.
      static_cast<void>(send(fd, answer.data(), answer.size(), MSG_NOSIGNAL));
    }
    if (got <= 0 || end != std::string::npos || text.size() > request_max) {
      loop_.forget(fd);
      clients_.erase(fd);
    }
  });
}

json Supervisor::serve(const std::string& line) {
  const auto parsed = json::parse(line, nullptr, false);
  if (parsed.is_discarded()) {
    return {{"error", "the request is not JSON"}};
  }
  auto request = request_from_json(parsed);
  if (!request) {
    return {{"error", request.error().message()}};
  }
  if (request->verb == Verb::show) {
    auto shown = show();
    return shown ? *shown : json{{"error", shown.error().message()}};
  }
  if (request->verb == Verb::stop) {
    say("stopped on request");
    finish(128 + SIGTERM);
    return {{"done", true}};
  }
  if (auto applied = apply(*request); !applied) {
    return {{"error", applied.error().message()}};
  }
  return {{"done", true}};
}

void Supervisor::heal_later(const Request& request, Duration in) {
  Request heal;
  heal.verb = Verb::heal;
  heal.target = request.target;
  heal.side = request.side;
  heal.cable = true;
  loop_.at(loop_.now() + in, [this, heal] {
    if (auto applied = apply(heal); !applied) {
      give_up(
          fail(applied.code(), fmt::format("'{}': {}", to_text(heal), applied.error().message())));
    }
  });
}

Result<void> Supervisor::apply(const Request& request) {
  const double at = std::chrono::duration<double>(loop_.now() - launched_).count();
  const std::string text = launched_ == Instant{}
                               ? to_text(request)
                               : fmt::format("{} at {:.3f} s", to_text(request), at);
  if (request.verb == Verb::kill) {
    auto host = topology_.host(request.target);
    if (!host) {
      return host.error();
    }
    for (size_t rank = 0; rank < jobs_.size(); ++rank) {
      jobs_[rank].killed = jobs_[rank].killed || options_.hosts[rank] == *host;
    }
    say(text);
    return backend_->kill_host(*host);
  }
  std::vector<LinkChoice> choices;
  if (request.target.empty()) {
    for (size_t link = 0; link < topology_.links.size(); ++link) {
      choices.push_back({link, {true, true}});
    }
  } else {
    auto found = topology_.find(request.target, request.side);
    if (!found) {
      return found.error();
    }
    choices = std::move(*found);
  }
  for (const LinkChoice& choice : choices) {
    auto next = changed(states_[choice.link], choice, request);
    if (!next) {
      return next.error();
    }
    if (*next == states_[choice.link]) {
      continue;
    }
    if (auto set = backend_->set_link(choice.link, *next); !set) {
      return set;
    }
    states_[choice.link] = *next;
  }
  say(text);
  if (!request.lasts.empty()) {
    auto time = parse_time(request.lasts);
    if (!time) {
      return time.error();
    }
    heal_later(request, *time);
  }
  return {};
}

Result<json> Supervisor::show() {
  auto counters = backend_->read_counters();
  if (!counters) {
    return counters.error();
  }
  json hosts = json::array();
  for (size_t host = 0; host < topology_.hosts.size(); ++host) {
    json entry = backend_->describe(host);
    entry["name"] = topology_.hosts[host];
    for (const Port& port : topology_.ports) {
      if (port.host == host) {
        entry["interfaces"][port.interface] =
            port.address.empty() ? std::string()
                                 : fmt::format("{}/{}", port.address, port.prefix_len);
      }
    }
    hosts.push_back(std::move(entry));
  }
  json links = json::array();
  for (size_t i = 0; i < topology_.links.size(); ++i) {
    const Link& link = topology_.links[i];
    json directions = json::array();
    for (size_t way = 0; way < 2; ++way) {
      const auto end = [&](size_t port) {
        return port == no_port ? std::string("switch")
                               : topology_.hosts[topology_.ports[port].host];
      };
      const DirectionCounters& count = (*counters)[i][way];
      directions.push_back({{"from", end(link.ports[way])},
                            {"to", end(link.ports[1 - way])},
                            {"state", describe(states_[i], way)},
                            {"frames", count.frames},
                            {"bytes", count.bytes},
                            {"dropped", count.dropped}});
    }
    links.push_back({{"name", link.name}, {"group", link.group}, {"directions", directions}});
  }
  return json{{"lab", directory_.path().filename()},
              {"topology", topology_.name},
              {"process", getpid()},
              {"hosts", std::move(hosts)},
              {"links", std::move(links)}};
}

}  // namespace nccl_ha::tools::lab
