#include "tools/lab/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/lab/pci_functions.h"

namespace nccl_ha::tools::lab {
namespace {

/// The kernel looks at carriers at most once a second (linkwatch); a loaded machine adds to it.
constexpr int carrier_wait_ms = 20000;
constexpr int host_spaces = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNS;

const char* make_spaces(const std::string& name) {
  if (unshare(host_spaces) != 0) {
    return "make its namespaces";
  }
  if (sethostname(name.data(), name.size()) != 0) {
    return "set its name";
  }
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return "keep its mounts to itself";
  }
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, nullptr) != 0) {
    return "mount /proc";
  }
  if (mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NOEXEC | MS_NODEV, nullptr) != 0) {
    return "mount /sys";
  }
  if (mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0) {
    return "mount /dev/shm";
  }
  return nullptr;
}

/// What the process does that keeps a host's namespaces: tells its number, then waits.
[[noreturn]] void hold(const Topology& topology, size_t host, int leash, int report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (const char* problem = make_spaces(topology.hosts[host])) {
    dprintf(report, "!cannot %s: %s", problem, strerror(errno));
    _exit(1);
  }
  if (auto shown = show_hardware(topology, host); !shown) {
    dprintf(report, "!%s", shown.error().message().c_str());
    _exit(1);
  }
  // Read from /proc as mounted inside: the number that other processes of the lab know it by.
  dprintf(report, "%d", static_cast<int>(getpid()));
  dup2(leash, 0);
  close_range(1, ~0U, 0);
  char byte;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  _exit(0);
}

bool loses_otherwise(const LinkState& before, const LinkState& after) {
  bool different = false;
  for (size_t i = 0; i < 2; ++i) {
    different = different || before.direction[i].blocked != after.direction[i].blocked ||
                before.direction[i].loss != after.direction[i].loss;
  }
  return different;
}

/// The processes in the network namespace of `holder`, itself left out.
std::vector<pid_t> processes_beside(pid_t holder) {
  std::vector<pid_t> found;
  std::error_code error;
  const auto space = [&](const std::string& process) {
    return std::filesystem::read_symlink("/proc/" + process + "/ns/net", error);
  };
  const auto own = space(std::to_string(holder));
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    const auto pid = static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10));
    if (pid > 0 && pid != holder && space(name) == own) {
      found.push_back(pid);
    }
  }
  return found;
}

bool all_running(int fd, const std::vector<std::string>& interfaces) {
  return std::all_of(interfaces.begin(), interfaces.end(), [fd](const std::string& name) {
    ifreq request{};
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    return ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0;
  });
}

/// In a child that is inside a host.  The socket is opened before the first look, so that no change
/// is missed.
Result<void> carriers_come(const std::vector<std::string>& interfaces) {
  const Fd changes(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  const Fd asking(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (bind(changes.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail(Errc::system, "cannot listen for changes of links", errno);
  }
  SteadyClock clock;
  const Instant deadline = clock.now() + std::chrono::milliseconds(carrier_wait_ms);
  while (!all_running(asking.get(), interfaces)) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.now()).count();
    pollfd wait{changes.get(), POLLIN, 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) == 0) {
      return fail(Errc::timed_out, "an interface got no carrier");
    }
    char buffer[8192];
    while (recv(changes.get(), buffer, sizeof buffer, 0) > 0) {
    }
  }
  return {};
}

}  // namespace

Namespaces::~Namespaces() {
  for (auto& [id, job] : jobs_) {
    kill(job.pid, SIGKILL);
    waitpid(job.pid, nullptr, 0);
  }
  for (Host& host : hosts_) {
    if (host.holder > 0) {
      kill(host.holder, SIGKILL);
      waitpid(host.holder, nullptr, 0);
    }
  }
}

std::string Namespaces::port_name(size_t port) const { return fmt::format("p{}", port); }

Result<void> Namespaces::start(Loop& loop, BackendEvents events) {
  loop_ = &loop;
  events_ = std::move(events);
  states_.resize(topology_.links.size());
  dropped_.resize(topology_.links.size());
  if (auto entered = containment_.enter(); !entered) {
    return entered;
  }
  hosts_.resize(topology_.hosts.size());
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (auto made = make_host(host); !made) {
      return made;
    }
  }
  if (auto wired = wire_up(); !wired) {
    return wired;
  }
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (auto up = wait_for_carrier(host); !up) {
      return up;
    }
  }
  loop.at(loop.now(), [this] { events_.ready(); });
  return {};
}

Result<void> Namespaces::make_host(size_t host) {
  auto leash = make_pipe();
  auto report = make_pipe();
  if (!leash || !report) {
    return fail(Errc::system, "cannot make pipes for a host", errno);
  }
  Host& made = hosts_[host];
  made.holder = fork();
  if (made.holder < 0) {
    return fail(Errc::system, "cannot start a host's process", errno);
  }
  if (made.holder == 0) {
    containment_.let_go();
    leash->writer.reset();
    hold(topology_, host, leash->reader.get(), report->writer.get());
  }
  made.leash = std::move(leash->writer);
  report->writer.reset();
  char text[256] = {};
  size_t length = 0;
  ssize_t got = 0;
  // The holder says one thing, in one write; a closed pipe means that it died.
  while ((got = read(report->reader.get(), text + length, sizeof text - 1 - length)) > 0 ||
         (got < 0 && errno == EINTR)) {
    length += got > 0 ? static_cast<size_t>(got) : 0;
  }
  made.holder_inside = static_cast<pid_t>(std::strtol(text, nullptr, 10));
  if (made.holder_inside <= 0) {
    return fail(Errc::system, fmt::format("host {}: {}", topology_.hosts[host],
                                          text[0] == '!' ? text + 1 : "its process ended"));
  }
  for (const char* space : {"ipc", "uts", "net", "mnt"}) {
    made.spaces.emplace_back(
        open(fmt::format("/proc/{}/ns/{}", made.holder, space).c_str(), O_RDONLY | O_CLOEXEC));
    if (!made.spaces.back()) {
      return fail(Errc::system,
                  fmt::format("cannot open host {}'s namespaces", topology_.hosts[host]), errno);
    }
  }
  return {};
}

std::function<Result<void>()> Namespaces::inside(size_t host) {
  return [this, host]() -> Result<void> {
    containment_.let_go();
    // The directory is looked up again inside: mounts are the host's own from here on.
    char* directory = getcwd(nullptr, 0);
    // Only who shares its directory with no other thread (a sanitizer may have one) may change its
    // mounts.
    if (unshare(CLONE_FS) != 0) {
      return fail(Errc::system, "cannot have a directory of its own", errno);
    }
    for (const Fd& space : hosts_[host].spaces) {
      if (setns(space.get(), 0) != 0) {
        return fail(Errc::system, "cannot enter the host", errno);
      }
    }
    if (directory != nullptr && chdir(directory) != 0) {
      return fail(Errc::system, fmt::format("cannot change to {}", directory), errno);
    }
    std::free(directory);
    return {};
  };
}

Result<void> Namespaces::wire_up() {
  // Duplicate address detection would hold addresses back for a second or two.
  const std::string no_dad = "net.ipv6.conf.default.accept_dad=0";
  std::string fabric = "link set lo up\n";
  for (size_t medium = 0; medium < topology_.media; ++medium) {
    fabric += fmt::format("link add b{} mtu {} type bridge forward_delay 0 mcast_snooping 0\n",
                          medium, mtu_);
    fabric += fmt::format("link set b{} addrgenmode none\nlink set b{} up\n", medium, medium);
  }
  std::vector<std::string> inside_host(hosts_.size(), "link set lo up\n");
  for (size_t i = 0; i < topology_.ports.size(); ++i) {
    const Port& port = topology_.ports[i];
    const auto& name = port.interface;
    fabric += fmt::format("link add p{} mtu {} type veth peer name {} mtu {} netns {}\n", i, mtu_,
                          name, mtu_, hosts_[port.host].holder_inside);
    fabric +=
        fmt::format("link set p{} addrgenmode none\nlink set p{} master b{}\nlink set p{} up\n", i,
                    i, topology_.links[port.link].medium, i);
    if (!port.address.empty()) {
      inside_host[port.host] +=
          fmt::format("addr add {}/{} dev {}\n", port.address, port.prefix_len, name);
    }
    inside_host[port.host] += fmt::format("link set {} up\n", name);
  }
  for (size_t host = 0; host < hosts_.size(); ++host) {
    // Not every kernel has IPv6.
    static_cast<void>(run_process({"sysctl", "-q", "-w", no_dad}, "", inside(host)));
  }
  if (auto made = must_run({"ip", "-batch", "-"}, fabric); !made) {
    return made.error();
  }
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (auto made = must_run({"ip", "-batch", "-"}, inside_host[host], inside(host)); !made) {
      return made.error();
    }
  }
  return {};
}

Result<void> Namespaces::wait_for_carrier(size_t host) {
  std::vector<std::string> interfaces;
  for (const Port& port : topology_.ports) {
    if (port.host == host) {
      interfaces.push_back(port.interface);
    }
  }
  const auto enter = inside(host);
  auto waited = run_process({"true"}, "", [&]() -> Result<void> {
    if (auto entered = enter(); !entered) {
      return entered;
    }
    return carriers_come(interfaces);
  });
  if (!waited) {
    return fail(waited.code(),
                fmt::format("host {}: {}", topology_.hosts[host], waited.error().message()));
  }
  return {};
}

Result<uint64_t> Namespaces::run(size_t host, const HostCommand& command) {
  if (hosts_[host].killed) {
    return fail(Errc::invalid_usage, fmt::format("host {} was killed", topology_.hosts[host]));
  }
  auto out = make_pipe();
  auto err = make_pipe();
  if (!out || !err) {
    return fail(Errc::system, "cannot make pipes", errno);
  }
  Place place;
  place.out = out->writer.get();
  place.err = err->writer.get();
  const auto enter = inside(host);
  place.before = [&]() -> Result<void> {
    for (const auto& [name, value] : command.environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    setpgid(0, 0);
    return enter();
  };
  auto pid = start_process(command.arguments, place);
  if (!pid) {
    return pid.error();
  }
  const uint64_t id = next_job_++;
  Job job;
  job.host = host;
  job.pid = *pid;
  job.pidfd = watch_process(*pid);
  job.out = std::move(out->reader);
  job.err = std::move(err->reader);
  for (const int fd : {job.out.get(), job.err.get()}) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  loop_->watch(job.pidfd.get(), [this, id] { reap(id); });
  loop_->watch(job.out.get(), [this, id] { read_output(id, Stream::out); });
  loop_->watch(job.err.get(), [this, id] { read_output(id, Stream::err); });
  jobs_[id] = std::move(job);
  return id;
}

/// Passes on one read's worth; false when there is nothing more for now.
bool Namespaces::read_output(uint64_t id, Stream stream) {
  Job& job = jobs_[id];
  const int fd = stream == Stream::out ? job.out.get() : job.err.get();
  char buffer[16384];
  const ssize_t got = read(fd, buffer, sizeof buffer);
  if (got > 0) {
    events_.output(job.host, stream, std::string_view(buffer, static_cast<size_t>(got)));
    return true;
  }
  if (got == 0) {
    loop_->forget(fd);
  }
  return false;
}

void Namespaces::reap(uint64_t id) {
  Job& job = jobs_[id];
  int status = 0;
  if (waitpid(job.pid, &status, WNOHANG) != job.pid) {
    return;
  }
  // What it wrote is in the pipes by now; what it left running in the background is not waited for.
  for (const Stream stream : {Stream::out, Stream::err}) {
    while (read_output(id, stream)) {
    }
  }
  for (const int fd : {job.pidfd.get(), job.out.get(), job.err.get()}) {
    loop_->forget(fd);
  }
  const size_t host = job.host;
  jobs_.erase(id);
  events_.ended(host, id, status_of(status));
}

Result<void> Namespaces::kill_host(size_t host) {
  hosts_[host].killed = true;
  for (const pid_t pid : processes_beside(hosts_[host].holder)) {
    kill(pid, SIGKILL);
  }
  // Frames on their way are lost with the host: so are those that would still come.
  for (size_t i = 0; i < topology_.ports.size(); ++i) {
    if (topology_.ports[i].host != host) {
      continue;
    }
    LinkState state = states_[topology_.ports[i].link];
    state.carrier = false;
    if (auto cut = set_link(topology_.ports[i].link, state); !cut) {
      return cut;
    }
  }
  return {};
}

Result<void> Namespaces::set_link(size_t link, const LinkState& state) {
  const Link& about = topology_.links[link];
  const LinkState before = std::exchange(states_[link], state);
  if (loses_otherwise(before, state)) {
    if (auto counted = count_drops(); !counted) {
      return counted;
    }
    if (auto set = set_rules(); !set) {
      return set;
    }
  }
  for (size_t direction = 0; direction < 2; ++direction) {
    const uint64_t rate = state.direction[direction].bits_per_second;
    if (rate == before.direction[direction].bits_per_second) {
      continue;
    }
    // Whoever sends waits at its own interface; what a switch sends waits at the switch's port.
    const size_t sender = about.ports[direction];
    const bool host_sends = sender != no_port;
    if (auto set = set_rate(host_sends ? sender : about.ports[0], host_sends, rate); !set) {
      return set;
    }
  }
  for (const size_t port : about.ports) {
    if (port == no_port || state.mtu == before.mtu) {
      continue;
    }
    // A bridge drops what is too large for the port that it would leave by.
    const std::string bytes = std::to_string(state.mtu != 0 ? state.mtu : mtu_);
    if (auto set = must_run({"ip", "link", "set", port_name(port), "mtu", bytes}); !set) {
      return set.error();
    }
  }
  if (state.carrier != before.carrier) {
    for (const size_t port : about.ports) {
      if (port == no_port) {
        continue;
      }
      if (auto set =
              must_run({"ip", "link", "set", port_name(port), state.carrier ? "up" : "down"});
          !set) {
        return set.error();
      }
    }
  }
  return {};
}

Result<void> Namespaces::set_rate(size_t port, bool inside_host, uint64_t bits_per_second) {
  const std::string interface = inside_host ? topology_.ports[port].interface : port_name(port);
  const auto where =
      inside_host ? inside(topology_.ports[port].host) : std::function<Result<void>()>();
  if (bits_per_second == 0) {
    if (auto removed = must_run({"tc", "qdisc", "del", "dev", interface, "root"}, "", where);
        !removed) {
      return removed.error();
    }
    return {};
  }
  // A bucket of 4 ms, but at least one of the kernel's largest packets (64 KiB).
  const uint64_t burst = std::max<uint64_t>(bits_per_second / 8 / 250, 65536 + mtu_);
  if (auto set = must_run({"tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate",
                           fmt::format("{}bit", bits_per_second), "burst",
                           fmt::format("{}b", burst), "latency", "50ms"},
                          "", where);
      !set) {
    return set.error();
  }
  return {};
}

/// One rule for each direction that loses frames; the comment says which it is.
Result<void> Namespaces::set_rules() {
  std::string rules;
  for (size_t link = 0; link < states_.size(); ++link) {
    const auto& ports = topology_.links[link].ports;
    for (size_t direction = 0; direction < 2; ++direction) {
      const Direction& wanted = states_[link].direction[direction];
      if (!wanted.blocked && wanted.loss == 0) {
        continue;
      }
      const size_t sender = ports[direction];
      rules += sender != no_port ? fmt::format("iifname \"{}\" ", port_name(sender))
                                 : fmt::format("oifname \"{}\" ", port_name(ports[0]));
      if (!wanted.blocked) {
        rules += fmt::format("numgen random mod {} < {} ", loss_whole, wanted.loss);
      }
      rules += fmt::format("counter drop comment \"{}/{}\"\n", link, direction);
    }
  }
  const std::string text = fmt::format(
      "table bridge lab {{}}\ndelete table bridge lab\ntable bridge lab {{\nchain forward {{\n"
      "type filter hook forward priority 0;\n{}}}\n}}\n",
      rules);
  if (auto set = must_run({"nft", "-f", "-"}, text); !set) {
    return set.error();
  }
  return {};
}

/// Adds what the present rules have dropped to dropped_, before they are replaced.
Result<void> Namespaces::count_drops() {
  auto counters = read_counters();
  if (!counters) {
    return counters.error();
  }
  for (size_t link = 0; link < counters->size(); ++link) {
    for (size_t direction = 0; direction < 2; ++direction) {
      dropped_[link][direction] = (*counters)[link][direction].dropped;
    }
  }
  return {};
}

Result<std::vector<LinkCounters>> Namespaces::read_counters() {
  std::vector<LinkCounters> counters(topology_.links.size());
  auto links = must_run({"ip", "-json", "-statistics", "link", "show", "type", "veth"});
  auto rules = must_run({"nft", "--json", "list", "ruleset"});
  if (!links || !rules) {
    return links ? rules.error() : links.error();
  }
  std::map<std::string, nlohmann::json> statistics;
  for (const auto& entry : nlohmann::json::parse(*links, nullptr, false)) {
    if (entry.contains("ifname") && entry.contains("stats64")) {
      statistics[entry["ifname"]] = entry["stats64"];
    }
  }
  const auto count = [&](size_t port, const char* way, const char* what) -> uint64_t {
    const auto found = statistics.find(port_name(port));
    return found == statistics.end() ? 0 : found->second[way][what].get<uint64_t>();
  };
  for (size_t link = 0; link < counters.size(); ++link) {
    const auto& ports = topology_.links[link].ports;
    for (size_t direction = 0; direction < 2; ++direction) {
      // What a host sends is received by the fabric's port, and the other way round.
      const size_t sender = ports[direction];
      const size_t port = sender != no_port ? sender : ports[0];
      const char* way = sender != no_port ? "rx" : "tx";
      counters[link][direction] = {count(port, way, "packets"), count(port, way, "bytes"),
                                   dropped_[link][direction]};
    }
  }
  const auto ruleset = nlohmann::json::parse(*rules, nullptr, false);
  for (const auto& entry : ruleset.value("nftables", nlohmann::json::array())) {
    size_t link = 0;
    size_t direction = 0;
    if (!entry.contains("rule") || !entry["rule"].contains("comment") ||
        std::sscanf(entry["rule"]["comment"].get<std::string>().c_str(), "%zu/%zu", &link,
                    &direction) != 2 ||
        link >= counters.size() || direction >= 2) {
      continue;
    }
    for (const auto& part : entry["rule"]["expr"]) {
      if (part.contains("counter") && part["counter"].is_object()) {
        counters[link][direction].dropped += part["counter"].value("packets", uint64_t{0});
      }
    }
  }
  return counters;
}

nlohmann::json Namespaces::describe(size_t host) {
  return {{"process", hosts_[host].holder}, {"killed", hosts_[host].killed}};
}

Error enter_host(pid_t holder, const std::vector<std::string>& command) {
  const Fd pidfd = watch_process(holder);
  int spaces = host_spaces | CLONE_NEWPID;
  if (geteuid() != 0) {
    spaces |= CLONE_NEWUSER;
  }
  if (!pidfd || unshare(CLONE_FS) != 0 || setns(pidfd.get(), spaces) != 0) {
    return fail(Errc::system, "cannot enter the host", errno);
  }
  // A process namespace is for children only.
  Place place;
  place.in = 0;
  place.out = 1;
  place.err = 2;
  auto pid = start_process(command, place);
  if (!pid) {
    return pid.error();
  }
  signal(SIGINT, SIG_IGN);  // it is for the one inside
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  end_process(status_of(status));
}

}  // namespace nccl_ha::tools::lab
