#include "tests/support/tool_runner.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

namespace nccl_ha::tests {
namespace {

using SteadyTime = std::chrono::steady_clock;

/// Everything is prepared before fork(): the calling process may have threads, and after a fork
/// their locks stay as they were.
class Prepared {
 public:
  Prepared(const std::string& program, const std::vector<std::string>& arguments,
           const Environment& environment) {
    words_.push_back(program);
    words_.insert(words_.end(), arguments.begin(), arguments.end());
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string entry = *at;
      const auto hides = [&](const auto& pair) { return entry.starts_with(pair.first + "="); };
      if (std::none_of(environment.begin(), environment.end(), hides)) {
        settings_.push_back(entry);
      }
    }
    for (const auto& [name, value] : environment) {
      settings_.push_back(name + "=" + value);
    }
    for (std::string& word : words_) {
      argv_.push_back(word.data());
    }
    for (std::string& setting : settings_) {
      envp_.push_back(setting.data());
    }
    argv_.push_back(nullptr);
    envp_.push_back(nullptr);
  }
  [[noreturn]] void execute() {
    execve(argv_[0], argv_.data(), envp_.data());
    _exit(127);
  }

 private:
  std::vector<std::string> words_;
  std::vector<std::string> settings_;
  std::vector<char*> argv_;
  std::vector<char*> envp_;
};

int milliseconds_until(SteadyTime::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - SteadyTime::now());
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 1000000));
}

}  // namespace

ToolRun run_program(const std::string& program, const std::vector<std::string>& arguments,
                    const Environment& environment, std::chrono::seconds limit) {
  ToolRun run;
  const auto begin = SteadyTime::now();
  const auto end = begin + limit;
  std::array<std::array<int, 2>, 2> pipes;
  for (auto& pair : pipes) {
    if (pipe2(pair.data(), O_CLOEXEC) != 0) {
      run.err = "pipe2 failed";
      return run;
    }
  }
  Prepared prepared(program, arguments, environment);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    dup2(pipes[0][1], STDOUT_FILENO);
    dup2(pipes[1][1], STDERR_FILENO);
    prepared.execute();
  }
  close(pipes[0][1]);
  close(pipes[1][1]);
  std::array<pollfd, 2> wait{{{pipes[0][0], POLLIN, 0}, {pipes[1][0], POLLIN, 0}}};
  const std::array<std::string*, 2> texts{&run.out, &run.err};
  while (wait[0].fd >= 0 || wait[1].fd >= 0) {
    const int ready = poll(wait.data(), wait.size(), milliseconds_until(end));
    if (ready == 0 && milliseconds_until(end) == 0 && !run.timed_out) {
      run.timed_out = true;
      kill(-pid, SIGKILL);
    }
    for (size_t i = 0; i < wait.size() && ready > 0; ++i) {
      if (wait[i].revents == 0) {
        continue;
      }
      std::array<char, 65536> bytes;
      const ssize_t got = read(wait[i].fd, bytes.data(), bytes.size());
      if (got <= 0) {
        close(wait[i].fd);
        wait[i].fd = -1;
      } else {
        texts[i]->append(bytes.data(), static_cast<size_t>(got));
      }
    }
  }
  int status = 0;
  waitpid(pid, &status, 0);
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.took = SteadyTime::now() - begin;
  return run;
}

std::string beside(const std::string& tool, const char* program) {
  return std::filesystem::path(tool).parent_path() / program;
}

std::string port_to_meet_at() {
  unsigned given_from = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> given_from;
  const auto is_free = [](unsigned port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(port));
    const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    close(fd);
    return bound;
  };
  std::random_device random;
  while (true) {
    const unsigned port = given_from / 2 + random() % (given_from / 2 - 17);
    if (is_free(port) && is_free(port + 17)) {
      return std::to_string(port);
    }
  }
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace nccl_ha::tests
