#include "tests/support/agent_lab.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "runtime/base/clock.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/until.h"

namespace nccl_ha::tests {
namespace {

constexpr const char* quiet_levels = "0s sup 0; 0s sout 0";

/// Who listens at a UNIX socket; 0: nobody.
int listener_of(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  ucred who{};
  socklen_t length = sizeof who;
  const bool good = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0;
  close(fd);
  return good ? who.pid : 0;
}

}  // namespace

RailBytes operator-(const RailBytes& later, const RailBytes& earlier) {
  return {later.at, later.sout - earlier.sout, later.sup - earlier.sup};
}

double share_of(const RailBytes& sent) {
  return static_cast<double>(sent.sup) /
         static_cast<double>(std::max<uint64_t>(1, sent.sout + sent.sup));
}

AgentLab::AgentLab(std::string tool, const std::string& perf) : tool_(std::move(tool)) {
  EXPECT_EQ(run_program(tool_, {"agent", "make-key", folder_ + "/keys"}).status, 0);
  write_settings("");
  std::ofstream other(folder_ + "/1.json");
  other << R"({"directory": ")" << folder_ << R"(/1", "page": "", "telemetry": {"listen": ""}})";
  other.close();
  lab_ = std::make_unique<BackgroundLab>(
      tool_, "agents" + std::to_string(getpid()),
      std::vector<std::string>{"run",
                               "islands-2",
                               "-q",
                               "--on",
                               "h1,h2",
                               "--timeout",
                               "110",
                               "--env",
                               "MPIB_HCA_SOUT=sout",
                               "--env",
                               "MPIB_HCA_SUP=sin",
                               "--env",
                               "HA_NCCL_IFNAME=sout,sin",
                               "--env",
                               "MPIB_MODE=1",
                               "--env",
                               "HA_NCCL_FABRIC=datagram",
                               "--",
                               "bash",
                               "-c",
                               "exec 2>&1; export MPIB_AGENT_DIR=" + folder_ +
                                   "/$RANK; while :; do nccl-ha agent "
                                   "--settings " +
                                   folder_ + "/$RANK.json; done & exec nccl-ha perf " + perf});
}

AgentLab::~AgentLab() { lab_.reset(); }

void AgentLab::write_settings(const std::string& more) const {
  std::ofstream file(folder_ + "/0.json");
  file << R"({"directory": ")" << run() << R"(", "page": "", "telemetry": {"listen": )"
       << R"("127.0.0.1:7471", "keys": ")" << folder_ << "/keys\"}" << (more.empty() ? "" : ", ")
       << more << "}\n";
}

nlohmann::json AgentLab::status() const {
  const ToolRun asked = run_program(tool_, {"agent", "status", "--json", "--dir", run()});
  return asked.status == 0 ? nlohmann::json::parse(asked.out, nullptr, false) : nlohmann::json();
}

int AgentLab::share() const {
  const nlohmann::json now = status();
  return now.is_object() && now["flows"].size() == 1 ? now["flows"][0]["share"].get<int>() : -1;
}

int AgentLab::agent_process() const { return listener_of(run() + "/agent.sock"); }

bool AgentLab::up() {
  if (!lab_->up() || !test::until([&] { return share() >= 0; })) {
    return false;
  }
  if (sender_ == 0) {
    // The shell that starts agents, which outlives them.
    std::ifstream stat("/proc/" + std::to_string(agent_process()) + "/stat");
    std::string text;
    std::getline(stat, text);
    std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    char state = 0;
    rest >> state >> sender_;
  }
  return sender_ > 1;
}

bool AgentLab::settle(const std::string& settings) {
  write_settings(settings);
  const auto reloads = [&] {
    const nlohmann::json now = status();
    return now.is_object() ? now["reloads"].get<int>() : -1;
  };
  const int before = reloads();
  kill(agent_process(), SIGHUP);
  return test::until([&] { return reloads() == before + 1; });
}

void AgentLab::end_agent(int signal, bool forget) {
  const int process = agent_process();
  if (forget) {
    std::filesystem::remove(run() + "/hints");
  }
  kill(process, signal);
  EXPECT_TRUE(test::until([&] {
    const int now = agent_process();
    return now != 0 && now != process;
  }));
}

ToolRun AgentLab::play(const std::string& script) const {
  return lab_->ask({"enter", "h1", "--", "nccl-ha", "agent", "simulate-switch",
                    std::string(quiet_levels) + "; " + script, "--keys", folder_ + "/keys",
                    "--linger", "0.1"});
}

RailBytes AgentLab::sent() const {
  std::ifstream file("/proc/" + std::to_string(sender_) + "/net/dev");
  SteadyClock clock;
  RailBytes now;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    uint64_t value = 0;
    for (int i = 0; i < 9; ++i) {
      words >> value;  // the ninth: bytes sent
    }
    if (name == "sout:") {
      now.sout = value;
    } else if (name == "sin:") {
      now.sup = value;
    }
  }
  now.at = clock.now();
  return now;
}

RailBytes AgentLab::sent_in(uint64_t bytes) const {
  const RailBytes begin = sent();
  RailBytes more;
  test::until([&] {
    more = sent() - begin;
    return more.sout + more.sup >= bytes;
  });
  return more;
}

bool AgentLab::slow_down(const std::string& rate) const {
  return lab_->ask({"slow", "h1.sout", rate}).status == 0 &&
         lab_->ask({"slow", "h1.sin", rate}).status == 0;
}

RailWatch::RailWatch(const AgentLab& lab)
    : watching_(std::async(std::launch::async, [this, &lab] {
        while (watch_) {
          samples_.push_back(lab.sent());
        }
      })) {}

void RailWatch::end() {
  watch_ = false;
  if (watching_.valid()) {
    watching_.get();
  }
}

RailBytes RailWatch::at(Instant moment) const {
  const auto found =
      std::lower_bound(samples_.begin(), samples_.end(), moment,
                       [](const RailBytes& sample, Instant time) { return sample.at < time; });
  return found == samples_.end() ? samples_.back() : *found;
}

double RailWatch::rate(Instant moment, Duration from, Duration to) const {
  const RailBytes first = at(moment + from);
  const RailBytes last = at(moment + to);
  const RailBytes sent = last - first;
  return static_cast<double>(sent.sout + sent.sup) /
         std::max(1e-9, std::chrono::duration<double>(last.at - first.at).count());
}

double RailWatch::ms_until(Instant moment, const std::function<bool(double)>& good) const {
  size_t first = 0;
  for (const RailBytes& sample : samples_) {
    while (sample.at - samples_[first].at > std::chrono::milliseconds(2)) {
      ++first;
    }
    const RailBytes sent = sample - samples_[first];
    if (samples_[first].at >= moment && sent.sout + sent.sup > 0 && good(share_of(sent))) {
      return static_cast<double>((sample.at - moment).count()) * 1e-6;
    }
  }
  return -1;
}

double RailWatch::ms_until_rate(Instant moment, Duration window, double rate) const {
  for (const RailBytes& sample : samples_) {
    if (sample.at >= moment && sample.at + window <= samples_.back().at &&
        this->rate(sample.at, Duration{}, window) >= rate) {
      return static_cast<double>((sample.at - moment).count()) * 1e-6;
    }
  }
  return -1;
}

Duration RailWatch::longest_pause() const {
  Duration longest{};
  RailBytes last = samples_.front();
  for (const RailBytes& sample : samples_) {
    if (sample.sout + sample.sup != last.sout + last.sup) {
      longest = std::max(longest, sample.at - last.at);
      last = sample;
    }
  }
  return longest;
}

}  // namespace nccl_ha::tests
