// Time as processes had it, on a machine that may be busy.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace nccl_ha::test {

/// What has passed since it was made, but for the time in which threads of these processes were
/// ready to run and had no processor, as the kernel counts that.  A thread that has ended counts as
/// one that never waited.
class OwnTime {
 public:
  explicit OwnTime(std::vector<pid_t> processes)
      : processes_(std::move(processes)), waited_(waited_ns()) {}

  double ms() const {
    const std::chrono::duration<double, std::milli> passed = Steady::now() - begun_;
    double waited_here = 0;
    for (const auto& [thread, now_ns] : waited_ns()) {
      const auto before = waited_.find(thread);
      const double before_ns = before == waited_.end() ? 0 : before->second;
      waited_here += (now_ns - before_ns) * 1e-6;
    }
    return passed.count() - waited_here;
  }

 private:
  using Steady = std::chrono::steady_clock;

  /// By thread.
  std::map<std::string, double> waited_ns() const {
    std::map<std::string, double> all;
    for (const pid_t process : processes_) {
      std::error_code gone;
      for (const auto& task : std::filesystem::directory_iterator(
               "/proc/" + std::to_string(process) + "/task", gone)) {
        double ran_ns = 0;
        double waited = 0;
        if (std::ifstream(task.path() / "schedstat") >> ran_ns >> waited) {
          all[task.path()] = waited;
        }
      }
    }
    return all;
  }

  std::vector<pid_t> processes_;
  std::map<std::string, double> waited_;
  std::chrono::steady_clock::time_point begun_ = Steady::now();
};

}  // namespace nccl_ha::test
