// nha-nic: makes a fault happen at the emulated NICs of all processes that share a state file.
#include <infiniband/verbs.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/rig/nic/control.h"

using namespace nccl_ha::emulated;

namespace {

constexpr const char* usage =
    "usage: nha-nic STATE-FILE COMMAND HOST:DEVICE[:PORT] [ARGUMENT]...\n"
    "  hang | reset | internal | back            what the device becomes\n"
    "  remove [MS]                               in order: its memory within MS, its queue pairs\n"
    "  cut [in|out|both] [link]                  the cable; link: the port sees it\n"
    "  heal [link]\n"
    "  hold MS                                   packets to it stay in the network\n"
    "  event NAME [pair=N] [silent]              qp_fatal, qp_req_err, qp_access_err, cq_err,\n"
    "                                            port_err, port_active, gid_change, lid_change,\n"
    "                                            sm_change, device_fatal\n"
    "  show                                      counters\n";

constexpr std::pair<std::string_view, ibv_event_type> events[] = {
    {"qp_fatal", IBV_EVENT_QP_FATAL},           {"qp_req_err", IBV_EVENT_QP_REQ_ERR},
    {"qp_access_err", IBV_EVENT_QP_ACCESS_ERR}, {"cq_err", IBV_EVENT_CQ_ERR},
    {"port_err", IBV_EVENT_PORT_ERR},           {"port_active", IBV_EVENT_PORT_ACTIVE},
    {"gid_change", IBV_EVENT_GID_CHANGE},       {"lid_change", IBV_EVENT_LID_CHANGE},
    {"sm_change", IBV_EVENT_SM_CHANGE},         {"device_fatal", IBV_EVENT_DEVICE_FATAL}};

/// Of a driver that ends a few hundred registrations.
constexpr uint64_t removal_ms = 5;

struct Target {
  unsigned host = 0;
  unsigned device = 0;
  unsigned port = 1;
};

bool has(const std::vector<std::string>& arguments, const char* word) {
  for (const std::string& one : arguments) {
    if (one == word) {
      return true;
    }
  }
  return false;
}

bool raise(Control& control, const Target& at, const std::vector<std::string>& arguments) {
  EventOrder order{at.host, at.device, at.port, 0, 0, has(arguments, "silent") ? 1U : 0U};
  for (const std::string& one : arguments) {
    if (one.rfind("pair=", 0) == 0) {
      order.pair = static_cast<uint32_t>(std::strtoul(one.c_str() + 5, nullptr, 10));
    }
  }
  for (const auto& [name, type] : events) {
    if (!arguments.empty() && name == arguments[0]) {
      order.type = static_cast<uint32_t>(type);
      control.raise(order);
      return true;
    }
  }
  return false;
}

void show(Control& control, const Target& at) {
  constexpr const char* modes[] = {"running", "hung", "reset", "internal", "removing"};
  const DeviceState& device = control.device(at.host, at.device);
  const DeviceCounters& counters = device.counters;
  std::printf("mode %s generation %u cut %u verbs %" PRIu64 " verbs_failed %" PRIu64
              " packets %" PRIu64 " lost %" PRIu64 " retries %" PRIu64 " not_ready %" PRIu64
              " silenced %" PRIu64 " forbidden %" PRIu64 " behind %" PRIu64 " revoked %" PRIu64
              "\n",
              modes[device.mode.load() % std::size(modes)], device.generation.load(),
              device.ports[at.port - 1].cut.load(), counters.verbs.load(),
              counters.verbs_failed.load(), counters.packets.load(), counters.lost.load(),
              counters.retries.load(), counters.not_ready.load(), counters.silenced.load(),
              counters.forbidden.load(), counters.behind.load(), counters.revoked.load());
}

bool carry_out(Control& control, const std::string& command, const Target& at,
               const std::vector<std::string>& arguments) {
  if (command == "hang") {
    control.set_mode(at.host, at.device, Mode::hung);
  } else if (command == "reset") {
    control.set_mode(at.host, at.device, Mode::reset);
  } else if (command == "internal") {
    control.set_mode(at.host, at.device, Mode::internal);
  } else if (command == "remove" && arguments.size() <= 1) {
    const uint64_t ms =
        arguments.empty() ? removal_ms : std::strtoull(arguments[0].c_str(), nullptr, 10);
    control.remove(at.host, at.device, ms * 1'000'000U);
  } else if (command == "back") {
    control.bring_back(at.host, at.device);
  } else if (command == "cut") {
    const uint32_t directions = has(arguments, "in")    ? cut_in
                                : has(arguments, "out") ? cut_out
                                                        : cut_in | cut_out;
    control.cut(at.host, at.device, at.port, directions, has(arguments, "link"));
  } else if (command == "heal") {
    control.cut(at.host, at.device, at.port, 0, has(arguments, "link"));
  } else if (command == "hold" && arguments.size() == 1) {
    control.hold(at.host, at.device, at.port,
                 std::strtoull(arguments[0].c_str(), nullptr, 10) * 1'000'000U);
  } else if (command == "show") {
    show(control, at);
  } else {
    return command == "event" && raise(control, at, arguments);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Target at;
  if (argc < 4 || std::sscanf(argv[3], "%u:%u:%u", &at.host, &at.device, &at.port) < 2 ||
      at.host >= hosts_max || at.device >= devices_max || at.port == 0 || at.port > ports_max) {
    std::fputs(usage, stderr);
    return 2;
  }
  Control control(argv[1]);
  if (!carry_out(control, argv[2], at, std::vector<std::string>(argv + 4, argv + argc))) {
    std::fputs(usage, stderr);
    return 2;
  }
  return 0;
}
