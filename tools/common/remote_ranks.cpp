#include "tools/common/remote_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "tools/common/loop.h"
#include "tools/common/process.h"
#include "tools/common/terminal.h"
#include "tools/common/within.h"

extern char** environ;

namespace nccl_ha::tools {
namespace {

/// What this program itself ends with at most; anything above is the remote shell's.
constexpr int own_status_max = 2;
/// How long a host may take until its rank runs.
constexpr double start_limit_s = 60;
/// Ranks end by themselves when the time is up, and say why.
constexpr double end_grace_s = 3;
/// Set for the ranks that run_on_hosts() starts.
constexpr const char* remote_variable = "NHA_REMOTE_RANK";
/// What such a rank says first, on a line of its own.
constexpr const char* started_mark = "nccl-ha: this rank runs";

Duration seconds(double value) { return Duration(static_cast<int64_t>(value * 1e9)); }

/// A remote shell takes words apart; what it would not leave alone is refused.
bool survives(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:=,^@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

[[noreturn]] void end_without_starter() {
  constexpr std::string_view why =
      "nccl-ha: standard input has ended, so that whoever started this rank counts as gone; what "
      "starts a command on a host must keep its standard input open (ssh without -n, docker exec "
      "with -i, no pdsh)\n";
  signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, why.data(), why.size());
  _exit(own_status_max);
}

/// The processes that hold the ranks.
class Ranks {
 public:
  explicit Ranks(const RemoteOptions& options) : options_(options) {
    ranks_.resize(options.hosts.size());
  }
  ~Ranks() {
    for (Rank& rank : ranks_) {
      if (rank.pid > 0) {
        kill(rank.pid, SIGTERM);
      }
      rank.in.reset();  // the remote process sees it, whatever the shell does with the signal
    }
    // One that does not heed that, a shell that hangs, is killed.
    SteadyClock clock;
    const Instant until = clock.now() + std::chrono::seconds(2);
    for (const Rank& rank : ranks_) {
      if (rank.pid <= 0) {
        continue;
      }
      pollfd ended{rank.pidfd.get(), POLLIN, 0};
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - clock.now()).count();
      if (!rank.pidfd || poll(&ended, 1, static_cast<int>(std::max<int64_t>(left, 0))) != 1) {
        kill(rank.pid, SIGKILL);
      }
      waitpid(rank.pid, nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  Result<int> run() {
    if (auto room = make_room(); !room) {
      return room.error();
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (auto started = start(rank); !started) {
        return started.error();
      }
    }
    const Instant begun = loop_.now();
    loop_.at(begun + seconds(std::min(start_limit_s, options_.timeout_s)), [this] {
      const auto silent = hosts_where([](const Rank& rank) { return !rank.started; });
      if (!silent.empty()) {
        give_up(
            fmt::format("nothing runs on {} yet: does '{} HOST -- {}' hang there, or ask "
                        "something?",
                        silent, options_.shell, options_.program));
      }
    });
    loop_.at(begun + seconds(options_.timeout_s + end_grace_s), [this] {
      give_up(fmt::format("not finished within --timeout {:g} s; still running: {}",
                          options_.timeout_s,
                          hosts_where([](const Rank& rank) { return rank.pid > 0; })));
    });
    show_progress(begun);
    loop_.run();
    progress_.clear();
    if (error_) {
      return *error_;
    }
    if (options_.hold_output && held_.empty()) {
      return fail(Errc::remote, fmt::format("the rank on {} ended with status {} and printed "
                                            "nothing: what it said on standard error tells why",
                                            options_.hosts[0].name, status_));
    }
    std::fwrite(held_.data(), 1, held_.size(), stdout);
    return status_;
  }

 private:
  /// Once all have begun: until then a shell may ask for a password on the same line.
  void show_progress(Instant begun) {
    const bool all =
        std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.started; });
    if (all && progress_.due()) {
      const auto at_work = std::count_if(ranks_.begin(), ranks_.end(),
                                         [](const Rank& rank) { return rank.pid > 0; });
      progress_.show(fmt::format(
          "{} of {} hosts at work, {} s", at_work, ranks_.size(),
          std::chrono::duration_cast<std::chrono::seconds>(loop_.now() - begun).count()));
    }
    loop_.at(loop_.now() + std::chrono::milliseconds(500), [this, begun] { show_progress(begun); });
  }

  struct Rank {
    pid_t pid = -1;
    Fd pidfd;
    Fd in;
    Fd out;
    std::string text;
    bool started = false;
  };

  template <class Predicate>
  std::string hosts_where(Predicate predicate) const {
    std::string names;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (predicate(ranks_[i])) {
        names += (names.empty() ? "" : ", ") + options_.hosts[i].name;
      }
    }
    return names;
  }

  void give_up(std::string why) {
    if (!error_) {
      error_ = fail(Errc::remote, std::move(why));
    }
    loop_.stop();
  }

  /// Each rank holds three descriptors here: what the system allows may be more than what a login
  /// gives (often 1024).
  Result<void> make_room() {
    if (getrlimit(RLIMIT_NOFILE, &descriptors_) != 0) {
      return fail(Errc::system, "cannot read the limit of open files", errno);
    }
    rlimit more = descriptors_;
    more.rlim_cur = more.rlim_max;
    setrlimit(RLIMIT_NOFILE, &more);  // where it is refused, a rank that finds none left says so
    return {};
  }

  Result<void> start(size_t number) {
    auto words = remote_command(options_, number);
    auto out = make_pipe();
    auto in = make_pipe();
    if (!words || !out || !in) {
      return !words ? words.error() : !out ? out.error() : in.error();
    }
    // Before there is a process, so that it goes into the pipe or is an error.
    const std::string settings = remote_settings();
    fcntl(in->writer.get(), F_SETFL, O_NONBLOCK);
    if (write(in->writer.get(), settings.data(), settings.size()) !=
        static_cast<ssize_t>(settings.size())) {
      return fail(Errc::system, "the settings of this environment do not fit into a pipe", errno);
    }
    Place place;
    place.in = in->reader.get();
    place.out = out->writer.get();
    place.err = number == 0 ? STDERR_FILENO : place.out;  // the first is who reports
    place.before = []() -> Result<void> {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      return {};
    };
    place.open_files = descriptors_;  // a rank is to see what it would see without this program
    auto pid = start_process(*words, place);
    if (!pid) {
      return pid.error();
    }
    Rank& rank = ranks_[number];
    rank.pid = *pid;
    rank.pidfd = watch_process(rank.pid);
    if (!rank.pidfd) {
      return fail(Errc::system,
                  fmt::format("cannot watch the process that starts the rank on {} (pidfd_open "
                              "needs Linux 5.3, and a container's filter that lets it through)",
                              options_.hosts[number].name),
                  errno);
    }
    rank.in = std::move(in->writer);
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
    progress_.clear();
    for (const std::string& line : take_lines(ranks_[number].text)) {
      if (line == started_mark) {
        ranks_[number].started = true;
      } else if (number != 0) {
        std::fprintf(stderr, "%s: %s\n", options_.hosts[number].name.c_str(), line.c_str());
      } else if (options_.hold_output) {
        held_ += line + "\n";
      } else {
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
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
    const std::string& host = options_.hosts[number].name;
    if (!rank.started) {
      give_up(
          fmt::format("nothing could be started on {} (status {}): can '{} {} -- {}' run "
                      "without a password, and is nccl-ha there (--program)?",
                      host, result, options_.shell, host, options_.program));
      return;
    }
    if (result > own_status_max) {
      give_up(fmt::format("the rank on {} ended with status {}", host, result));
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
  ProgressLine progress_;
  std::vector<Rank> ranks_;
  rlimit descriptors_{};  ///< as this program was started with
  std::string held_;
  std::optional<Error> error_;
  int status_ = 0;
};

}  // namespace

void add_remote_options(CLI::App& command, RemoteOptions& options) {
  CLI::Option* list = command.add_option("--hosts", options.list,
                                         "Hosts, a rank on each: a,b=10.0.0.3,node[01-08]; or job: "
                                         "those of this job (Slurm, PBS, LSF)");
  CLI::Option* file =
      command
          .add_option("--hosts-file", options.file, "A file with a host on each line, as mpirun's")
          ->excludes(list);
  for (CLI::Option* option : {list, file}) {
    option->each([&options](const std::string&) { options.given = true; });
  }
  command
      .add_option("--ssh", options.shell,
                  "What starts a command on a host; it is given HOST -- COMMAND")
      ->capture_default_str();
  command.add_option("--program", options.program,
                     "nccl-ha on those hosts (default: where this one is)");
  command.add_option("--port", options.port, "TCP port of the first host to meet at")
      ->check(within(1024, 65000))
      ->capture_default_str();
}

std::vector<std::string> words_to_pass_on() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> words;
  bool skip = true;  // the program
  for (size_t from = 0; from < all.size();) {
    const size_t end = std::min(all.find('\0', from), all.size());
    const std::string word = all.substr(from, end - from);
    from = end + 1;
    if (std::exchange(skip, false)) {
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    const bool ours = name == "--hosts" || name == "--hosts-file" || name == "--ssh" ||
                      name == "--program" || name == "--port";
    skip = ours && name == word;
    if (!ours) {
      words.push_back(word);
    }
  }
  return words;
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
                fmt::format("MASTER_PORT={}", options.port), fmt::format("{}=1", remote_variable)});
  if (const char* libraries = getenv("LD_LIBRARY_PATH"); libraries != nullptr && *libraries != 0) {
    words.push_back(fmt::format("LD_LIBRARY_PATH={}", libraries));  // it counts from the beginning
  }
  words.push_back(options.program);
  words.insert(words.end(), options.words.begin(), options.words.end());
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

std::string remote_settings() {
  std::string settings;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool ours =
        text.starts_with("HA_NCCL_") || text.starts_with("NCCL_") || text.starts_with("MPIB_");
    if (ours && text.find('=') + 1 < text.size()) {
      settings.append(text).push_back(0);
    }
  }
  settings.push_back(0);
  return settings;
}

bool take_remote_settings(int from) {
  std::string text;
  for (;;) {
    char byte = 0;
    const ssize_t got = read(from, &byte, 1);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got != 1) {
      return false;
    }
    if (byte != 0) {
      text.push_back(byte);
      continue;
    }
    if (text.empty()) {
      return true;
    }
    if (const size_t at = text.find('='); at != std::string::npos) {
      setenv(text.substr(0, at).c_str(), text.c_str() + at + 1, 1);
    }
    text.clear();
  }
}

Result<int> run_on_hosts(RemoteOptions options) {
  if (options.program.empty()) {
    std::error_code error;
    options.program = std::filesystem::read_symlink("/proc/self/exe", error);
  }
  return Ranks(options).run();
}

void begin_remote_rank() {
  if (getenv(remote_variable) == nullptr) {
    return;
  }
  std::printf("%s\n", started_mark);
  std::fflush(stdout);
  if (!take_remote_settings(STDIN_FILENO)) {
    end_without_starter();
  }
  // Nothing more is written to it: it can be read when the other end is gone.
  std::thread([] {
    char byte = 0;
    ssize_t got = 0;
    do {
      got = read(STDIN_FILENO, &byte, 1);
    } while (got > 0 || (got < 0 && errno == EINTR));
    end_without_starter();
  }).detach();
}

}  // namespace nccl_ha::tools
