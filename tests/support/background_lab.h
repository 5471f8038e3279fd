// A lab that runs while a test does something to it.
#pragma once

#include <chrono>
#include <future>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {

class BackgroundLab {
 public:
  /// Starts `tool lab ARGUMENTS` under that name, or nha-guests beside it where the first argument
  /// is "guests"; ends it at the latest after `limit`.
  BackgroundLab(std::string tool, std::string name, std::vector<std::string> arguments,
                std::chrono::seconds limit = std::chrono::seconds(120));
  /// Ends the lab if it still runs, and removes what it left.
  ~BackgroundLab();
  BackgroundLab(const BackgroundLab&) = delete;
  BackgroundLab& operator=(const BackgroundLab&) = delete;

  /// Waits until it takes requests; false when it ended before.
  bool up();
  ToolRun ask(std::vector<std::string> arguments) const;
  /// `lab show`; discarded when there is no answer.
  nlohmann::json show() const;
  /// Waits until the link has carried that many bytes in one direction; false when it ended before.
  bool carried(const std::string& link, uint64_t bytes);
  /// What it has carried in that direction until now; 0 when the lab has ended.
  uint64_t carried(const std::string& link) const;
  /// Kills the lab's own process, so that it cannot clean up.
  void crash();
  /// Waits for its end.
  ToolRun wait();

 private:
  bool ended() const;

  std::string tool_;
  std::string name_;
  std::future<ToolRun> run_;
};

/// The entry of a link in what show() gave.
nlohmann::json link_named(const nlohmann::json& shown, const std::string& name);

}  // namespace nccl_ha::tests
