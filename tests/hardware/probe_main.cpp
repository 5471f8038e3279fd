// nha-nic-probe: figures of an RDMA NIC that nccl-ha relies on (docs/hardware.md).
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "tests/hardware/probe.h"

namespace nccl_ha::hardware {
namespace {

constexpr const char* usage =
    "usage: nha-nic-probe list\n"
    "       nha-nic-probe verbs [OPTIONS]\n"
    "       nha-nic-probe pair --listen PORT | --peer HOST:PORT [OPTIONS]\n"
    "       nha-nic-probe link --listen PORT | --peer HOST:PORT [OPTIONS]\n"
    "Prints one JSON object.  pair and link run on two hosts at once; the one with --peer sends.\n"
    "link says \"streaming\" on a line of its own; then that host's or the other's link may go\n"
    "down, for which it waits a minute.\n"
    "  --device NAME     default: the first\n"
    "  --port N          default: 1\n"
    "  --gid N           default: the first of RoCE v2 with an IPv4 address\n"
    "  --repeat N        of each verb, and a tenth of the messages (default: 200)\n"
    "  --rounds N        of queue pairs that end under load (default: 20)\n"
    "  --timeout N       of queue pairs, 4.096 us * 2^N (default: 14)\n"
    "  --retries N       (default: 7)\n";

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c >= ' ' ? c : ' ';
  }
  return out + "\"";
}

bool parse(int count, char** words, Options* options) {
  for (int i = 2; i + 1 < count; i += 2) {
    const std::string_view name = words[i];
    const char* value = words[i + 1];
    if (name == "--device") {
      options->device = value;
    } else if (name == "--peer") {
      options->peer = value;
    } else if (name == "--port") {
      options->port = std::atoi(value);
    } else if (name == "--gid") {
      options->gid = std::atoi(value);
    } else if (name == "--repeat") {
      options->repeat = std::max(1, std::atoi(value));
    } else if (name == "--rounds") {
      options->rounds = std::max(1, std::atoi(value));
    } else if (name == "--timeout") {
      options->timeout = std::atoi(value);
    } else if (name == "--retries") {
      options->retries = std::atoi(value);
    } else if (name == "--listen") {
      options->listen = std::atoi(value);
    } else {
      return false;
    }
  }
  return count % 2 == 0;
}

std::string port_json(ibv_context* context, int number) {
  ibv_port_attr port{};
  require(ibv_query_port(context, static_cast<uint8_t>(number), &port) == 0, "ibv_query_port");
  return Object()
      .add("port", number)
      .add("active", port.state == IBV_PORT_ACTIVE ? 1 : 0)
      .add_text("link", port.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "Ethernet")
      .add("mtu", 128 << port.active_mtu)
      .add("speed", static_cast<int>(port.active_speed))
      .add("width", static_cast<int>(port.active_width))
      .add("lid", static_cast<int>(port.lid))
      .add("gids", port.gid_tbl_len)
      .json();
}

}  // namespace

void give_up(const std::string& why) {
  std::fprintf(stderr, "nha-nic-probe: %s\n", why.c_str());
  std::fflush(nullptr);
  _Exit(2);
}

void require(bool holds, const char* what) {
  if (!holds) {
    give_up(std::string(what) + " failed" +
            (errno == 0 ? std::string() : std::string(": ") + std::strerror(errno)));
  }
}

double Times::max() const { return all_.empty() ? 0 : *std::max_element(all_.begin(), all_.end()); }

std::string Times::json() const {
  std::vector<double> sorted = all_;
  std::sort(sorted.begin(), sorted.end());
  const auto part = [&](double share) {
    return sorted.empty()
               ? 0.0
               : sorted[std::min(
                     sorted.size() - 1,
                     static_cast<size_t>(std::floor(share * static_cast<double>(sorted.size()))))];
  };
  return Object()
      .add("count", static_cast<uint64_t>(sorted.size()))
      .add("p50_us", part(0.5))
      .add("p99_us", part(0.99))
      .add("max_us", max())
      .json();
}

Object& Object::add(const std::string& name, const std::string& json) {
  body_ += (body_.empty() ? "" : ", ") + quoted(name) + ": " + json;
  return *this;
}
Object& Object::add(const std::string& name, uint64_t number) {
  return add(name, std::to_string(number));
}
Object& Object::add(const std::string& name, int number) {
  return add(name, std::to_string(number));
}
Object& Object::add(const std::string& name, double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", number);
  return add(name, std::string(text));
}
Object& Object::add_text(const std::string& name, const std::string& text) {
  return add(name, quoted(text));
}

std::string list_devices() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  Object all;
  for (int i = 0; i < count; ++i) {
    ibv_context* context = ibv_open_device(list[i]);
    ibv_device_attr device{};
    if (context == nullptr || ibv_query_device(context, &device) != 0) {
      all.add(ibv_get_device_name(list[i]), std::string("null"));
      continue;
    }
    std::string ports;
    for (int port = 1; port <= device.phys_port_cnt; ++port) {
      ports += (port == 1 ? "" : ", ") + port_json(context, port);
    }
    all.add(ibv_get_device_name(list[i]),
            Object()
                .add_text("firmware", device.fw_ver)
                .add("vendor", static_cast<uint64_t>(device.vendor_id))
                .add("part", static_cast<uint64_t>(device.vendor_part_id))
                .add("max_qp", device.max_qp)
                .add("max_qp_wr", device.max_qp_wr)
                .add("max_cqe", device.max_cqe)
                .add("max_mr", device.max_mr)
                .add("max_rd_atomic", device.max_qp_rd_atom)
                .add("ports", "[" + ports + "]")
                .json());
    ibv_close_device(context);
  }
  return Object().add("devices", all.json()).json();
}

}  // namespace nccl_ha::hardware

int main(int count, char** words) {
  using namespace nccl_ha::hardware;
  Options options;
  const std::string_view what = count > 1 ? words[1] : "";
  const bool two = what == "pair" || what == "link";
  if ((what != "list" && what != "verbs" && !two) || !parse(count, words, &options) ||
      (two && options.peer.empty() && options.listen == 0)) {
    std::fputs(usage, stderr);
    return what == "--help" ? 0 : 2;
  }
  std::string said;
  if (what == "list") {
    said = list_devices();
  } else if (what == "verbs") {
    said = measure_verbs(options);
  } else {
    Device device(options);
    Wire wire(options);
    said = what == "link"
               ? measure_link_down(device, wire, options)
               : Object()
                     .add("order", measure_order(device, wire, options))
                     .add("end_under_load", measure_end_under_load(device, wire, options))
                     .add("verbs_under_load", measure_verbs_under_load(device, wire, options))
                     .json();
  }
  std::printf("%s\n", said.c_str());
  return 0;
}
