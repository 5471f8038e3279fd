#include "tests/rig/guests/guests.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/cpu.h"
#include "tools/lab/guest_port.h"

extern char** environ;

namespace nccl_ha::tools::lab {
namespace {

using nlohmann::json;

/// Software emulation boots in 5 s; a machine that is busy with other things takes several times
/// that.
constexpr auto boot_limit = std::chrono::seconds(180);
constexpr int monitor_limit_ms = 10000;
/// Where the guest's end of its channels is in the emulator.
constexpr int control_fd = 10;
constexpr int monitor_fd = 11;
constexpr int out_fd = 12;
constexpr int err_fd = 13;
constexpr int requests_fd = 14;
constexpr size_t console_tail = 2000;
constexpr time_t send_seconds = 10;

/// Of this process's environment, what a command in a guest sees.  The rest speaks of the host.
bool passes(std::string_view name) {
  if (name == "LD_LIBRARY_PATH" || name == "PATH" || name == "LANG" || name == "TERM") {
    return true;
  }
  for (const std::string_view prefix :
       {"NCCL_", "HA_NCCL_", "MPIB_", "NHA_", "GTEST_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_"}) {
    if (name.starts_with(prefix)) {
      return true;
    }
  }
  return false;
}

/// Quotes for bash on one line.
std::string bash_word(std::string_view text) {
  std::string out = "$'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 32) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "'";
}

Result<void> make_pair(Fd& here, Fd& there) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(Errc::system, "cannot make a socket pair", errno);
  }
  here = Fd(ends[0]);
  there = Fd(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  // For the one who sends blocking: a guest that takes nothing any more must not hold the lab up.
  const timeval limit{send_seconds, 0};
  setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return {};
}

std::string mac_of(size_t port) { return fmt::format("52:54:00:4e:48:{:02x}", port + 1); }

#if defined(__x86_64__)
/// The rate of cpu_ticks() by the steady clock, to some 10 parts in a million.
uint64_t ticks_per_ms() {
  struct Sample {
    Instant time;
    uint64_t ticks;
  };
  SteadyClock clock;
  const auto sample = [&clock] {  // of several the one that was interrupted least
    Sample best{};
    Duration narrowest = Duration::max();
    for (int i = 0; i < 8; ++i) {
      const Instant before = clock.now();
      const uint64_t ticks = cpu_ticks();
      const Instant after = clock.now();
      if (after - before < narrowest) {
        narrowest = after - before;
        best = {before + narrowest / 2, ticks};
      }
    }
    return best;
  };
  const Sample begin = sample();
  while (clock.now() < begin.time + std::chrono::milliseconds(10)) {
  }
  const Sample end = sample();
  return (end.ticks - begin.ticks) * 1'000'000 /
         static_cast<uint64_t>((end.time - begin.time).count());
}
#endif

}  // namespace

std::string shell_line(const HostCommand& command, const std::string& directory) {
  std::string line = fmt::format("cd {} || exit 125;", bash_word(directory));
  for (const auto& [name, value] : command.environment) {
    line += fmt::format(" export {}={};", name, bash_word(value));
  }
  line += " exec";
  for (const std::string& argument : command.arguments) {
    line += " " + bash_word(argument);
  }
  return line;
}

Guests::~Guests() {
  for (Guest& guest : guests_) {
    if (guest.pid > 0) {
      kill(guest.pid, SIGKILL);
      waitpid(guest.pid, nullptr, 0);
    }
  }
}

Result<void> Guests::start(Loop& loop, BackendEvents events) {
  loop_ = &loop;
  events_ = std::move(events);
  states_.resize(topology_.links.size());
  guests_.resize(topology_.hosts.size());
  std::random_device random;
  token_ = fmt::format("{:08x}{:08x}", random(), random());
  if (options_.shared.find_first_of(" \t\n,\"") != std::string::npos) {
    return fail(Errc::invalid_argument,
                fmt::format("--share {}: a path with blanks, commas or quotes cannot be passed on "
                            "to a guest",
                            options_.shared));
  }
  if (auto entered = containment_.enter(); !entered) {
    return entered;
  }
  // Frames wait in socket queues, whose length is a matter of the network namespace.
  std::ofstream("/proc/sys/net/unix/max_dgram_qlen") << 512;
  if (auto started = forwarder_.start(topology_, directory_, [this] { containment_.let_go(); });
      !started) {
    return started;
  }
  for (size_t host = 0; host < guests_.size(); ++host) {
    if (auto started = start_guest(host); !started) {
      return started;
    }
  }
  loop.at(loop.now() + boot_limit, [this] {
    for (size_t host = 0; host < guests_.size(); ++host) {
      if (!guests_[host].ready && !guests_[host].killed) {
        events_.broken(fail(Errc::timed_out,
                            fmt::format("guest {} did not start within {} s: {}",
                                        topology_.hosts[host], boot_limit.count(), console(host))));
        return;
      }
    }
  });
  return {};
}

std::vector<std::string> Guests::machine(size_t host) const {
  // An emulated clock source that the kernel trusts: the alternative costs 640 ns for each look.
  std::string kernel_line = fmt::format(
      "console=ttyS0 panic=-1 quiet mitigations=off clocksource=tsc tsc=reliable no_timer_check "
      "nha.host={} nha.mtu={}",
      topology_.hosts[host], options_.mtu);
#if defined(__x86_64__)
  // The emulated counter is this host's.  A guest that gets no processor while it measures the
  // counter's rate would take it for up to three times as slow, and its time would run as much too
  // fast.
  kernel_line += fmt::format(" tsc_early_khz={}", ticks_per_ms());
#endif
  std::vector<std::string> more;
  for (size_t i = 0; i < topology_.ports.size(); ++i) {
    const Port& port = topology_.ports[i];
    if (port.host != host) {
      continue;
    }
    kernel_line += fmt::format(" nha.port={}/{}/{}/{}/{}", port.interface, mac_of(i), port.address,
                               port.prefix_len, port.management ? 1 : 0);
    const std::string local = machine_socket(directory_, i);
    const std::string remote = forwarder_socket(directory_, i);
    more.insert(
        more.end(),
        {"-netdev",
         fmt::format("dgram,id=net{},local.type=unix,local.path={},remote.type=unix,"
                     "remote.path={}",
                     i, local, remote),
         "-device",
         fmt::format("virtio-net-pci,netdev=net{},id=nic{},mac={},romfile=", i, i, mac_of(i))});
  }
  if (!options_.shared.empty()) {
    const std::string shared = std::filesystem::absolute(options_.shared);
    kernel_line += " nha.share=" + shared;
    more.insert(more.end(), {"-virtfs", fmt::format("local,path={},mount_tag=share,"
                                                    "security_model=none,multidevs=remap",
                                                    shared)});
  }
  std::vector<std::string> line = {
      "qemu-system-x86_64",
      "-accel",
      "tcg,thread=multi",
      "-cpu",
      "max",
      "-smp",
      std::to_string(options_.cpus),
      "-m",
      std::to_string(options_.memory_mib),
      "-nodefaults",
      "-no-user-config",
      "-display",
      "none",
      "-no-reboot",
      "-kernel",
      options_.kernel.kernel,
      "-initrd",
      options_.kernel.initramfs,
      "-append",
      kernel_line,
      "-serial",
      fmt::format("file:{}", (directory_ / (topology_.hosts[host] + ".console")).string()),
      "-virtfs",
      "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
      "-chardev",
      fmt::format("socket,id=monitor,fd={}", monitor_fd),
      "-mon",
      "chardev=monitor,mode=control",
      "-device",
      "virtio-serial-pci"};
  for (const auto& [name, fd] :
       {std::pair("ctl", control_fd), std::pair("out", out_fd), std::pair("err", err_fd),
        std::pair(guest_port_name, requests_fd)}) {
    line.insert(line.end(), {"-chardev", fmt::format("socket,id={},fd={}", name, fd), "-device",
                             fmt::format("virtserialport,chardev={},name={}", name, name)});
  }
  line.insert(line.end(), more.begin(), more.end());
  return line;
}

Result<void> Guests::start_guest(size_t host) {
  Guest& guest = guests_[host];
  Fd control;
  Fd monitor;
  Fd out;
  Fd err;
  Fd requests;
  for (auto made : {make_pair(guest.control, control), make_pair(guest.monitor, monitor),
                    make_pair(guest.out, out), make_pair(guest.err, err),
                    make_pair(guest.requests, requests)}) {
    if (!made) {
      return made;
    }
  }
  const Fd log(open((directory_ / (topology_.hosts[host] + ".emulator")).c_str(),
                    O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  Place place;
  place.out = place.err = log.get();
  place.before = [this]() -> Result<void> {
    containment_.let_go();
    return {};
  };
  place.more = {{control.get(), control_fd},
                {monitor.get(), monitor_fd},
                {out.get(), out_fd},
                {err.get(), err_fd},
                {requests.get(), requests_fd}};
  auto pid = start_process(machine(host), place);
  if (!pid) {
    return pid.error();
  }
  guest.pid = *pid;
  guest.pidfd = watch_process(guest.pid);
  loop_->watch(guest.pidfd.get(), [this, host] { guest_ended(host); });
  loop_->watch(guest.control.get(), [this, host] { read_control(host); });
  loop_->watch(guest.requests.get(), [this, host] { read_requests(host); });
  loop_->watch(guest.out.get(), [this, host] { read_stream(host, Stream::out); });
  loop_->watch(guest.err.get(), [this, host] { read_stream(host, Stream::err); });
  return {};
}

/// The end of what a guest's kernel and its emulator said.
std::string Guests::console(size_t host) const {
  std::string text;
  for (const char* file : {".console", ".emulator"}) {
    std::ifstream in(directory_ / (topology_.hosts[host] + file));
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  return text.empty()
             ? "it said nothing"
             : "its last words:\n" + text.substr(text.size() - std::min(text.size(), console_tail));
}

void Guests::read_control(size_t host) {
  Guest& guest = guests_[host];
  if (!read_some(guest.control.get(), guest.control_text)) {
    loop_->forget(guest.control.get());
    return;
  }
  for (const std::string& line : take_lines(guest.control_text)) {
    if (line.starts_with("broken ")) {
      events_.broken(fail(Errc::system, fmt::format("guest {}: {}; {}", topology_.hosts[host],
                                                    line.substr(7), console(host))));
      return;
    }
    if (line == "ready" && !guest.ready) {
      guest.ready = true;
      if (std::all_of(guests_.begin(), guests_.end(), [](const Guest& g) { return g.ready; })) {
        events_.ready();
      }
    }
  }
}

void Guests::read_requests(size_t host) {
  Guest& guest = guests_[host];
  if (!read_some(guest.requests.get(), guest.requests_text)) {
    loop_->forget(guest.requests.get());
    return;
  }
  for (const std::string& line : take_lines(guest.requests_text)) {
    const std::string answer = events_.asked(line);
    // An answer is smaller than a socket's buffer; whoever does not read it has waived it.
    static_cast<void>(send(guest.requests.get(), answer.data(), answer.size(), MSG_NOSIGNAL));
  }
}

void Guests::read_stream(size_t host, Stream stream) {
  Guest& guest = guests_[host];
  const int fd = stream == Stream::out ? guest.out.get() : guest.err.get();
  std::string& text = stream == Stream::out ? guest.out_text : guest.err_text;
  if (!read_some(fd, text)) {
    loop_->forget(fd);
  }
  const std::string mark = std::string(1, '\0') + token_;
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark)) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) {
      break;
    }
    events_.output(host, stream, std::string_view(text).substr(0, at));
    uint64_t id = 0;
    int status = 0;
    const bool whole = std::sscanf(text.c_str() + at + mark.size(), "-%lu %d", &id, &status) == 2;
    text.erase(0, end + 1);
    const auto job = jobs_.find(id);
    if (whole && job != jobs_.end() && ++job->second.ends == 2) {
      jobs_.erase(job);
      events_.ended(host, id, status);
    }
  }
  // What may be the start of a mark that has not come whole yet is kept.
  size_t keep = text.find('\0');
  while (keep != std::string::npos &&
         text.compare(keep, mark.size(), mark, 0, text.size() - keep) != 0) {
    keep = text.find('\0', keep + 1);
  }
  keep = std::min(keep, text.size());
  if (keep > 0) {
    events_.output(host, stream, std::string_view(text).substr(0, keep));
    text.erase(0, keep);
  }
}

void Guests::guest_ended(size_t host) {
  Guest& guest = guests_[host];
  int status = 0;
  if (waitpid(guest.pid, &status, WNOHANG) != guest.pid) {
    return;
  }
  guest.pid = -1;
  loop_->forget(guest.pidfd.get());
  if (!guest.killed) {
    events_.broken(
        fail(Errc::system, fmt::format("guest {} ended with status {}; {}", topology_.hosts[host],
                                       status_of(status), console(host))));
    return;
  }
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto current = job++;
    if (current->second.host == host) {
      const uint64_t id = current->first;
      jobs_.erase(current);
      events_.ended(host, id, 128 + SIGKILL);
    }
  }
}

Result<uint64_t> Guests::run(size_t host, const HostCommand& command) {
  Guest& guest = guests_[host];
  if (guest.killed) {
    return fail(Errc::invalid_usage, fmt::format("guest {} was killed", topology_.hosts[host]));
  }
  HostCommand whole = command;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && passes(text.substr(0, equals))) {
      whole.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  std::error_code error;
  const std::string directory = std::filesystem::current_path(error);
  const uint64_t id = next_job_++;
  const std::string line =
      fmt::format("{}-{} {}\n", token_, id, shell_line(whole, error ? "/" : directory));
  fcntl(guest.control.get(), F_SETFL, 0);
  const ssize_t sent = send(guest.control.get(), line.data(), line.size(), MSG_NOSIGNAL);
  fcntl(guest.control.get(), F_SETFL, O_NONBLOCK);
  if (sent != static_cast<ssize_t>(line.size())) {
    return fail(Errc::system, fmt::format("guest {} takes no commands", topology_.hosts[host]),
                errno);
  }
  jobs_[id] = {host, 0};
  return id;
}

Result<void> Guests::kill_host(size_t host) {
  Guest& guest = guests_[host];
  guest.killed = true;
  if (guest.pid > 0) {
    kill(guest.pid, SIGKILL);
  }
  return {};
}

Result<void> Guests::set_link(size_t link, const LinkState& state) {
  const bool was_up = states_[link].carrier;
  states_[link] = state;
  forwarder_.set(link, state);
  if (state.carrier == was_up) {
    return {};
  }
  for (const size_t port : topology_.links[link].ports) {
    if (port == no_port || guests_[topology_.ports[port].host].killed) {
      continue;
    }
    if (auto set =
            monitor(topology_.ports[port].host,
                    {{"execute", "set_link"},
                     {"arguments", {{"name", fmt::format("nic{}", port)}, {"up", state.carrier}}}});
        !set) {
      return set;
    }
  }
  return {};
}

/// Runs a command of the emulator's monitor (QMP) to its end.
Result<void> Guests::monitor(size_t host, const json& command) {
  Guest& guest = guests_[host];
  const int fd = guest.monitor.get();
  std::string text = command.dump() + "\n";
  if (!std::exchange(guest.greeted, true)) {
    // The first thing that it wants to hear.
    text = R"({"execute":"qmp_capabilities","id":"hello"})"
           "\n" +
           text;
  }
  if (send(fd, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    return fail(Errc::system, fmt::format("guest {} cannot be told", topology_.hosts[host]), errno);
  }
  pollfd wait{fd, POLLIN, 0};
  while (true) {
    for (const std::string& line : take_lines(guest.monitor_text)) {
      const json answer = json::parse(line, nullptr, false);
      if (answer.is_object() && answer.contains("error")) {
        return fail(Errc::system, fmt::format("guest {} refuses {}: {}", topology_.hosts[host],
                                              command.dump(), answer["error"].dump()));
      }
      if (answer.is_object() && answer.contains("return") && !answer.contains("id")) {
        return {};
      }
    }
    if (poll(&wait, 1, monitor_limit_ms) != 1 || !read_some(fd, guest.monitor_text)) {
      return fail(Errc::timed_out,
                  fmt::format("guest {} does not answer its monitor", topology_.hosts[host]));
    }
  }
}

Result<std::vector<LinkCounters>> Guests::read_counters() { return forwarder_.counters(); }

json Guests::describe(size_t host) {
  return {{"ready", guests_[host].ready}, {"killed", guests_[host].killed}};
}

}  // namespace nccl_ha::tools::lab
