#include "tests/support/background_lab.h"

#include <signal.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace nccl_ha::tests {

using nlohmann::json;

BackgroundLab::BackgroundLab(std::string tool, std::string name, std::vector<std::string> arguments,
                             std::chrono::seconds limit)
    : tool_(std::move(tool)), name_(std::move(name)) {
  std::string program = tool_;
  if (arguments.front() == "guests") {
    program = beside(tool_, "nha-guests");
    arguments.erase(arguments.begin());
    arguments.insert(arguments.begin(), {"--name", name_});
  } else {
    arguments.insert(arguments.begin(), "lab");
    arguments.insert(arguments.begin() + 2, {"--name", name_});
  }
  run_ = std::async(std::launch::async, [program, arguments = std::move(arguments), limit] {
    return run_program(program, arguments, {}, limit);
  });
}

BackgroundLab::~BackgroundLab() {
  if (run_.valid()) {
    ask({"stop"});
    run_.wait();
  }
  run_program(tool_, {"lab", "clean", name_});
}

bool BackgroundLab::ended() const {
  return run_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool BackgroundLab::up() {
  while (!ended()) {
    if (ask({"show"}).status == 0) {
      return true;
    }
  }
  return false;
}

ToolRun BackgroundLab::ask(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), "lab");
  arguments.insert(arguments.begin() + 2, {"--lab", name_});
  return run_program(tool_, arguments);
}

json BackgroundLab::show() const {
  const ToolRun shown = ask({"show", "--json"});
  return shown.status == 0 ? json::parse(shown.out, nullptr, false) : json();
}

bool BackgroundLab::carried(const std::string& link, uint64_t bytes) {
  while (!ended()) {
    if (carried(link) >= bytes) {
      return true;
    }
  }
  return false;
}

uint64_t BackgroundLab::carried(const std::string& link) const {
  const json entry = link_named(show(), link);
  return entry.is_object() ? entry["directions"][0]["bytes"].get<uint64_t>() : 0;
}

void BackgroundLab::crash() {
  kill(show()["process"].get<pid_t>(), SIGKILL);
  wait();
}

ToolRun BackgroundLab::wait() { return run_.get(); }

json link_named(const json& shown, const std::string& name) {
  if (shown.is_object()) {
    for (const json& link : shown["links"]) {
      if (link["name"] == name) {
        return link;
      }
    }
  }
  return {};
}

}  // namespace nccl_ha::tests
