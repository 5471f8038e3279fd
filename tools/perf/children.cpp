#include "tools/perf/children.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/perf/message.h"

namespace nccl_ha::tools {
namespace {

int milliseconds_until(Instant deadline) {
  SteadyClock clock;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock.now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1000000));
}

}  // namespace

Children::~Children() {
  kill_all();
  if (signals_ >= 0) {
    ::close(signals_);
  }
}

Result<void> Children::watch_signals() {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  signals_ = signalfd(-1, &ends, SFD_CLOEXEC);
  if (signals_ < 0) {
    return fail(Errc::system, "cannot watch for signals", errno);
  }
  // Ranks inherit it: a terminal's SIGINT comes to them as well, and is not theirs to judge.
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  return {};
}

void Children::take_signal() {
  interrupted_ = true;
  signalfd_siginfo taken;
  [[maybe_unused]] const ssize_t got = read(signals_, &taken, sizeof taken);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_UNBLOCK, &ends, nullptr);
}

Result<void> Children::start(size_t group, RankSetup setup) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return fail(Errc::system, "cannot make a socket pair", errno);
  }
  // What stdio still holds would otherwise be printed by every child as well.
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    ::close(pair[0]);
    ::close(pair[1]);
    return fail(Errc::system, fmt::format("cannot start rank {}", setup.world.rank), error);
  }
  if (pid == 0) {
    // A rank never outlives its parent, however that ends.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    for (const Child& other : children_) {
      ::close(other.fd);
    }
    children_.clear();
    ::close(pair[0]);
    setup.channel_fd = pair[1];
    std::exit(run_rank(setup));
  }
  ::close(pair[1]);
  Child child;
  child.group = group;
  child.rank = setup.world.rank;
  child.pid = pid;
  child.fd = pair[0];
  child.name = fmt::format("rank {} ({})", setup.world.rank, setup.plugin.name);
  if (setup.options.verbose) {
    std::fprintf(stderr, "nccl-ha perf: %s is process %d\n", child.name.c_str(), pid);
  }
  children_.push_back(std::move(child));
  return {};
}

bool Children::order(size_t group, const nlohmann::json& message) {
  const std::string text = message.dump();
  for (const Child& child : children_) {
    if (child.group == group && child.rank == 0 && child.fd >= 0) {
      return send(child.fd, text.data(), text.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(text.size());
    }
  }
  return false;
}

bool Children::all_ended() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.fd < 0; });
}

std::vector<std::string> Children::reasons() const {
  std::vector<std::string> all = deaths_;
  all.insert(all.end(), primary_.begin(), primary_.end());
  all.insert(all.end(), secondary_.begin(), secondary_.end());
  return all;
}

std::optional<RankMessage> Children::next(Instant deadline) {
  while (!failed() && !all_ended() && !interrupted_) {
    std::vector<pollfd> wait;
    for (const Child& child : children_) {
      wait.push_back({child.fd, POLLIN, 0});  // ended ones have -1, which poll passes over
    }
    wait.push_back({signals_, POLLIN, 0});
    const int left = milliseconds_until(deadline);
    const int ready = poll(wait.data(), wait.size(), left);
    if (ready == 0 && milliseconds_until(deadline) == 0) {
      return std::nullopt;
    }
    if (ready > 0 && wait.back().revents != 0) {
      take_signal();
      return std::nullopt;
    }
    for (size_t i = 0; i < children_.size() && ready > 0; ++i) {
      if (wait[i].revents == 0) {
        continue;
      }
      if (auto message = read_from(children_[i])) {
        return message;
      }
    }
  }
  return std::nullopt;
}

std::optional<RankMessage> Children::read_from(Child& child) {
  std::string packet(channel_packet_max, '\0');
  const ssize_t got = recv(child.fd, packet.data(), packet.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return std::nullopt;
  }
  if (got <= 0) {
    reap(child);
    return std::nullopt;
  }
  packet.resize(static_cast<size_t>(got));
  auto body = nlohmann::json::parse(packet, nullptr, false);
  if (body.is_discarded() || !body.contains("type")) {
    primary_.push_back(child.name + " sent a message that could not be read");
    return std::nullopt;
  }
  if (body["type"] == "failure") {
    child.explained = true;
    const auto text = fmt::format("{}: {}", child.name, body["text"].get<std::string>());
    (body["secondary"].get<bool>() ? secondary_ : primary_).push_back(text);
    return std::nullopt;
  }
  return RankMessage{child.group, child.rank, std::move(body)};
}

// The channel's end is the sign that the process ends; its status follows at once.
void Children::reap(Child& child) {
  ::close(child.fd);
  child.fd = -1;
  int status = 0;
  if (waitpid(child.pid, &status, 0) != child.pid || child.killed_by_us) {
    return;
  }
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    deaths_.push_back(fmt::format("{}, process {}, was killed by signal {} ({})", child.name,
                                  child.pid, number, strsignal(number)));
  } else if (WEXITSTATUS(status) != 0 && !child.explained) {
    deaths_.push_back(fmt::format("{}, process {}, ended with status {} without a word", child.name,
                                  child.pid, WEXITSTATUS(status)));
  }
}

void Children::abort(Instant deadline) {
  size_t group = SIZE_MAX;
  for (const Child& child : children_) {
    if (child.fd < 0 || child.explained) {
      group = std::min(group, child.group);
    }
  }
  // Ranks of the other plugin have nothing to say about it.
  for (Child& child : children_) {
    if (child.fd >= 0 && group != SIZE_MAX && child.group != group) {
      child.killed_by_us = true;
      kill(child.pid, SIGKILL);
    }
  }
  while (!all_ended() && milliseconds_until(deadline) > 0) {
    std::vector<pollfd> wait;
    for (const Child& child : children_) {
      wait.push_back({child.fd, POLLIN, 0});
    }
    const int ready = poll(wait.data(), wait.size(), milliseconds_until(deadline));
    for (size_t i = 0; i < children_.size() && ready > 0; ++i) {
      if (wait[i].revents != 0) {
        read_from(children_[i]);
      }
    }
  }
  kill_all();
}

void Children::kill_all() {
  for (Child& child : children_) {
    if (child.fd >= 0) {
      child.killed_by_us = true;
      kill(child.pid, SIGKILL);
    }
  }
  for (Child& child : children_) {
    if (child.fd >= 0) {
      reap(child);
    }
  }
}

}  // namespace nccl_ha::tools
