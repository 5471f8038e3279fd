// A running lab: starts the hosts, runs the command on them, takes requests, ends in good order.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/lab/backend.h"
#include "tools/lab/request.h"
#include "tools/lab/state.h"

namespace nccl_ha::tools::lab {

/// Exit statuses beside those of the command, as timeout(1) and others have them.
inline constexpr int status_timed_out = 124;
inline constexpr int status_lab_broken = 125;

struct SupervisorOptions {
  std::vector<std::string> command;
  std::vector<size_t> hosts;  ///< that run it, in the order of their ranks
  std::map<std::string, std::string> environment;
  std::vector<ScriptStep> script;
  double timeout_s = 600;
  bool quiet = false;  ///< no lines of the lab's own, errors excepted
};

/// Something that is done on the lab before the command, to tell a broken lab from a broken
/// command.
class Precheck {
 public:
  virtual ~Precheck() = default;
  /// Calls `done` from the loop, with what is wrong if something is.
  virtual Result<void> start(Backend& backend, std::function<void(std::optional<Error>)> done) = 0;
  virtual void output(size_t host, Stream stream, std::string_view bytes) = 0;
  virtual void ended(uint64_t job, int status) = 0;
  /// What it is about at the moment, for an error.
  virtual std::string doing() const = 0;
};

/// One lab.  Single-threaded.
class Supervisor {
 public:
  Supervisor(const Topology& topology, LabDirectory directory, SupervisorOptions options)
      : topology_(topology), directory_(std::move(directory)), options_(std::move(options)) {}

  /// Runs the lab to its end; gives the exit status.
  int run(Backend& backend, Precheck* precheck);

  const LabDirectory& directory() const { return directory_; }

 private:
  struct Job {
    uint64_t id = 0;
    std::optional<int> status;
    bool killed = false;  ///< on request
  };
  /// A stream of a host, cut into lines with the host's name before each.
  struct Lines {
    std::string rest;
  };

  void say(const std::string& text) const;
  Result<void> open_control();
  Result<void> open_signals();
  void begin();
  void launch();
  void job_ended(uint64_t id, int status);
  void pass_on(size_t host, Stream stream, std::string_view bytes);
  void flush_rests();
  void finish(int status);
  void give_up(const Error& error);
  void accept_request();
  nlohmann::json serve(const std::string& line);
  Result<void> apply(const Request& request);
  void heal_later(const Request& request, Duration in);
  Result<nlohmann::json> show();

  const Topology& topology_;
  LabDirectory directory_;
  SupervisorOptions options_;
  Loop loop_;
  Backend* backend_ = nullptr;
  Precheck* precheck_ = nullptr;
  bool checking_ = false;
  Fd control_;
  Fd signals_;
  std::map<int, std::pair<Fd, std::string>> clients_;
  std::vector<LinkState> states_;
  std::vector<Job> jobs_;  ///< one per entry of options_.hosts
  std::map<std::pair<size_t, Stream>, Lines> lines_;
  Instant launched_{};
  int status_ = 0;
};

}  // namespace nccl_ha::tools::lab
