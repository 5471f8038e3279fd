#include "tests/rig/runs/closing.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace nccl_ha::rig {
namespace {

/// That are not there as long as the process is: one looks after each of its devices.
size_t actors(const sim::Process& process) {
  const std::set<sim::RdmaNic*> devices(process.nics.begin(), process.nics.end());
  size_t count = 0;
  for (size_t i = 0; process.engine && i < process.engine->worker_count(); ++i) {
    count += process.engine->worker(i).actor_count();
  }
  return count - std::min(count, devices.size());
}

}  // namespace

Closing::Closing(Stage& stage) : stage_(stage), random_(stage.scenario().seed * 1000003 + 5) {}

void Closing::make_links() {
  const auto& ends = stage_.scenario().links;
  for (size_t i = 0; stage_.scenario().kind == RunKind::closes && i < ends.size(); ++i) {
    if (random_.chance(0.3)) {
      unaccepted_.push_back(std::make_unique<SimLink>(
          stage_.world(), *stage_.processes()[ends[i].from], *stage_.processes()[ends[i].to]));
      unaccepted_.back()->leave_unaccepted();
    }
  }
}

void Closing::step() {
  for (auto& link : unaccepted_) {
    static_cast<void>(link->step_connecting());
  }
}

bool Closing::step_closing() {
  step();
  if (!std::exchange(begun_, true)) {
    for (const auto* links : {&stage_.links(), &unaccepted_}) {
      for (const auto& link : *links) {
        for (const auto close :
             {&SimLink::close_sender, &SimLink::close_receiver, &SimLink::close_listener}) {
          open_.push_back({link.get(), close});
        }
      }
    }
  }
  for (size_t some = random_.below(3); some != 0 && !open_.empty(); --some) {
    const auto one = open_.begin() + static_cast<ptrdiff_t>(random_.below(open_.size()));
    // A connect that is under way has nothing to close yet.
    if (one->close != &SimLink::close_sender || one->link->answered()) {
      (one->link->*one->close)();
      open_.erase(one);
    }
  }
  if (!open_.empty()) {
    stage_.world().network().stop_at(stage_.now() + std::chrono::milliseconds(1));
  }
  return open_.empty() && left_over().empty();
}

std::string Closing::left_over() const {
  for (size_t i = 0; i < stage_.processes().size(); ++i) {
    if (const size_t count = actors(*stage_.processes()[i]); count != 0) {
      return fmt::format("process {} has {} actors more though all was closed", i, count);
    }
  }
  return "";
}

std::string Closing::end_processes() {
  for (size_t i = 0; i < stage_.processes().size(); ++i) {
    sim::Process& process = *stage_.processes()[i];
    SimPlugin& plugin = SimPlugin::of(stage_.world(), process);
    if (random_.chance(0.5)) {
      plugin.finalize();
      continue;
    }
    sim::World::end_process(process);
    if (plugin.ended_in_use()) {
      return fmt::format("process {} ended with something open though all was closed", i);
    }
  }
  return "";
}

}  // namespace nccl_ha::rig
