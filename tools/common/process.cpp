#include "tools/common/process.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tools/common/output.h"

namespace nccl_ha::tools {
namespace {

/// As every command that could not do its work.
constexpr int status_not_written = 2;

void reset_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    signal(number, SIG_DFL);
  }
}

/// In the child: puts the streams where they belong; only those survive exec.
bool place_streams(const Place& place) {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  std::vector<std::pair<int, int>> wanted = {{place.in < 0 ? nothing : place.in, 0},
                                             {place.out < 0 ? nothing : place.out, 1},
                                             {place.err < 0 ? nothing : place.err, 2}};
  wanted.insert(wanted.end(), place.more.begin(), place.more.end());
  // First out of each other's way, then to where they belong.
  int above = 2;
  for (const auto& [here, there] : wanted) {
    above = std::max(above, there);
  }
  for (auto& [here, there] : wanted) {
    here = fcntl(here, F_DUPFD_CLOEXEC, above + 1);
    if (here < 0) {
      return false;
    }
  }
  return std::all_of(wanted.begin(), wanted.end(),
                     [](const auto& pair) { return dup2(pair.first, pair.second) >= 0; });
}

[[noreturn]] void become(const std::vector<std::string>& command, const Place& place, int report) {
  reset_signals();
  std::string problem;
  if (place.before) {
    if (const auto prepared = place.before(); !prepared) {
      problem = prepared.error().message();
    }
  }
  if (problem.empty() && place_streams(place)) {
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (const std::string& argument : command) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    if (place.open_files) {
      // Only now: what is closed by exec may be more than the program is allowed.
      setrlimit(RLIMIT_NOFILE, &*place.open_files);
    }
    execvp(arguments[0], arguments.data());
  }
  if (problem.empty()) {
    problem = fmt::format("cannot run {}: {}", command[0], strerror(errno));
  }
  static_cast<void>(!write(report, problem.data(), problem.size()));
  _exit(127);
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool read_some(int fd, std::string& into) {
  char buffer[65536];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got > 0) {
    into.append(buffer, static_cast<size_t>(got));
  }
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

std::vector<std::string> take_lines(std::string& text) {
  std::vector<std::string> lines;
  size_t from = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', from)) {
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  text.erase(0, from);
  return lines;
}

void end_process(int status) {
  const bool written = finish_output();
  std::fflush(nullptr);
  _exit(written ? status : std::max(status, status_not_written));
}

Fd watch_process(pid_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return fail(Errc::system, "cannot make a pipe", errno);
  }
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

Result<pid_t> start_process(const std::vector<std::string>& command, const Place& place) {
  auto report = make_pipe();
  if (!report) {
    return report.error();
  }
  const pid_t pid = fork();
  if (pid < 0) {
    return fail(Errc::system, "cannot start " + command[0], errno);
  }
  if (pid == 0) {
    become(command, place, report->writer.get());
  }
  report->writer.reset();
  std::string problem;
  while (read_some(report->reader.get(), problem)) {
  }
  if (!problem.empty()) {
    waitpid(pid, nullptr, 0);
    return fail(Errc::system, problem);
  }
  return pid;
}

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Result<Ended> run_process(const std::vector<std::string>& command, const std::string& input,
                          const std::function<Result<void>()>& before) {
  auto in = make_pipe();
  auto out = make_pipe();
  auto err = make_pipe();
  if (!in || !out || !err) {
    return fail(Errc::system, "cannot make pipes", errno);
  }
  Place place;
  place.before = before;
  place.in = in->reader.get();
  place.out = out->writer.get();
  place.err = err->writer.get();
  auto pid = start_process(command, place);
  if (!pid) {
    return pid.error();
  }
  in->reader.reset();
  out->writer.reset();
  err->writer.reset();
  fcntl(in->writer.get(), F_SETFL, O_NONBLOCK);
  Ended ended;
  size_t written = 0;
  while (out->reader || err->reader) {
    if (written == input.size()) {
      in->writer.reset();
    }
    pollfd wait[] = {{out->reader.get(), POLLIN, 0},
                     {err->reader.get(), POLLIN, 0},
                     {in->writer.get(), POLLOUT, 0}};
    poll(wait, 3, -1);
    if (wait[0].revents != 0 && !read_some(wait[0].fd, ended.out)) {
      out->reader.reset();
    }
    if (wait[1].revents != 0 && !read_some(wait[1].fd, ended.err)) {
      err->reader.reset();
    }
    if (wait[2].revents != 0) {
      const ssize_t sent = write(wait[2].fd, input.data() + written, input.size() - written);
      if (sent >= 0) {
        written += static_cast<size_t>(sent);
      } else if (errno != EAGAIN && errno != EINTR) {
        written = input.size();  // it does not want the rest; its status tells what it thinks
      }
    }
  }
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  ended.status = status_of(status);
  return ended;
}

Result<std::string> must_run(const std::vector<std::string>& command, const std::string& input,
                             const std::function<Result<void>()>& before) {
  auto ended = run_process(command, input, before);
  if (!ended) {
    return ended.error();
  }
  if (ended->status != 0) {
    std::string words;
    for (const std::string& argument : command) {
      words += (words.empty() ? "" : " ") + argument;
    }
    return fail(Errc::system, fmt::format("'{}' ended with status {}: {}", words, ended->status,
                                          ended->err.empty() ? ended->out : ended->err));
  }
  return std::move(ended->out);
}

}  // namespace nccl_ha::tools
