#include "tools/check/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <string_view>

#include "tools/common/loop.h"
#include "tools/common/process.h"

extern char** environ;

namespace nccl_ha::tools {
namespace {

/// What nccl-ha check itself ends with at most; anything above is the remote shell's.
constexpr int check_status_max = 2;
constexpr int unreachable = 2;
constexpr size_t hosts_max = 4096;

/// A remote shell takes words apart; what it would not leave alone is refused.
bool survives(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:=,^@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

/// The processes that hold the ranks.
class Ranks {
 public:
  explicit Ranks(const RemoteOptions& options) : options_(options) {
    ranks_.resize(options.hosts.size());
  }
  ~Ranks() {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) {
        kill(rank.pid, SIGTERM);
        waitpid(rank.pid, nullptr, 0);
      }
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  Result<int> run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (auto started = start(rank); !started) {
        return started.error();
      }
    }
    loop_.run();
    return status_;
  }

 private:
  struct Rank {
    pid_t pid = -1;
    Fd pidfd;
    Fd out;
    std::string text;
  };

  Result<void> start(size_t number) {
    auto words = remote_command(options_, number);
    auto out = make_pipe();
    if (!words || !out) {
      return words ? out.error() : words.error();
    }
    Place place;
    place.out = place.err = out->writer.get();
    place.before = []() -> Result<void> {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      return {};
    };
    auto pid = start_process(*words, place);
    if (!pid) {
      return pid.error();
    }
    Rank& rank = ranks_[number];
    rank.pid = *pid;
    rank.pidfd = watch_process(rank.pid);
    rank.out = std::move(out->reader);
    fcntl(rank.out.get(), F_SETFL, O_NONBLOCK);
    loop_.watch(rank.out.get(), [this, number] { read_output(number); });
    loop_.watch(rank.pidfd.get(), [this, number] { ended(number); });
    return {};
  }

  bool read_output(size_t number) {
    Rank& rank = ranks_[number];
    const size_t before = rank.text.size();
    if (!read_some(rank.out.get(), rank.text)) {
      loop_.forget(rank.out.get());
      return false;
    }
    if (rank.text.size() == before) {
      return false;
    }
    print_lines(number);
    return true;
  }

  void print_lines(size_t number) {
    for (const std::string& line : take_lines(ranks_[number].text)) {
      if (number == 0) {
        std::printf("%s\n", line.c_str());
      } else {
        std::fprintf(stderr, "%s: %s\n", options_.hosts[number].name.c_str(), line.c_str());
      }
    }
  }

  void ended(size_t number) {
    Rank& rank = ranks_[number];
    int status = 0;
    if (waitpid(rank.pid, &status, WNOHANG) != rank.pid) {
      return;
    }
    rank.pid = -1;
    loop_.forget(rank.pidfd.get());
    while (read_output(number)) {
    }
    loop_.forget(rank.out.get());
    if (!rank.text.empty()) {
      rank.text += '\n';  // its last line had no end
      print_lines(number);
    }
    const int result = status_of(status);
    if (result > check_status_max) {
      std::fprintf(stderr,
                   "nccl-ha check: nothing could be started on %s (status %d): can '%s %s -- %s' "
                   "run without a password, and is nccl-ha there (--program)?\n",
                   options_.hosts[number].name.c_str(), result, options_.shell.c_str(),
                   options_.hosts[number].name.c_str(), options_.program.c_str());
      status_ = unreachable;
      loop_.stop();
      return;
    }
    if (number == 0) {
      status_ = result;
    }
    if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.pid < 0; })) {
      loop_.stop();
    }
  }

  const RemoteOptions& options_;
  Loop loop_;
  std::vector<Rank> ranks_;
  int status_ = 0;
};

}  // namespace

Result<std::vector<NamedHost>> parse_hosts(const std::string& text) {
  std::vector<NamedHost> hosts;
  std::set<std::string> seen;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const size_t equals = part.find('=');
    NamedHost host{part.substr(0, equals),
                   equals == std::string::npos ? part : part.substr(equals + 1)};
    if (host.name.starts_with('-') || !survives(host.name) || !survives(host.address)) {
      return fail(Errc::invalid_argument,
                  fmt::format("--hosts: '{}' is not of the form NAME or NAME=ADDRESS", part));
    }
    if (!seen.insert(host.name).second) {
      return fail(Errc::invalid_argument, fmt::format("--hosts: {} is there twice", host.name));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.size() < 2 || hosts.size() > hosts_max) {
    return fail(Errc::invalid_argument,
                fmt::format("--hosts: give 2 to {} hosts, not {}", hosts_max, hosts.size()));
  }
  return hosts;
}

Result<std::vector<std::string>> remote_command(const RemoteOptions& options, size_t rank) {
  std::vector<std::string> words = CLI::detail::split_up(options.shell);
  if (words.empty()) {
    return fail(Errc::invalid_argument,
                "--ssh is empty: give the command that starts a remote one");
  }
  const size_t local_words = words.size() + 2;
  words.insert(words.end(),
               {options.hosts[rank].name, "--", "env", fmt::format("RANK={}", rank),
                fmt::format("WORLD_SIZE={}", options.hosts.size()), "LOCAL_RANK=0",
                "LOCAL_WORLD_SIZE=1", fmt::format("MASTER_ADDR={}", options.hosts.front().address),
                fmt::format("MASTER_PORT={}", options.port)});
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool ours = text.starts_with("HA_NCCL_") || text.starts_with("NCCL_") ||
                      text.starts_with("LD_LIBRARY_PATH=");
    if (ours && text.find('=') + 1 < text.size()) {
      words.emplace_back(text);
    }
  }
  words.push_back(options.program);
  words.emplace_back("check");
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  for (size_t i = local_words; i < words.size(); ++i) {
    if (!survives(words[i])) {
      return fail(Errc::invalid_argument,
                  fmt::format("'{}' cannot be passed to a remote shell as it is: leave out blanks "
                              "and special characters, or start the ranks with your launcher",
                              words[i]));
    }
  }
  return words;
}

Result<int> run_on_hosts(const RemoteOptions& options) { return Ranks(options).run(); }

}  // namespace nccl_ha::tools
