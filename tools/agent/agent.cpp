#include "tools/agent/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/config.h"
#include "runtime/base/log.h"
#include "runtime/engine/engine.h"
#include "runtime/streams/listening.h"
#include "runtime/telemetry/agent_directory.h"
#include "tools/agent/http_port.h"
#include "tools/agent/keeper.h"
#include "tools/agent/page.h"
#include "tools/agent/processes.h"
#include "tools/agent/view.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

/// Held for as long as the process lives, however it ends.
Result<Fd> lock_directory(const AgentDirectory& directory) {
  Fd lock(openat(directory.fd(), "agent.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) {
    return fail(Errc::system, fmt::format("cannot make {}/agent.lock", directory.path()), errno);
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(Errc::invalid_usage,
                fmt::format("another agent serves in {} already; end it, or name another directory",
                            directory.path()));
  }
  return lock;
}

/// Signals come through a descriptor, to the worker.  To be called before any thread is made.
Result<int> take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGHUP, SIGTERM, SIGINT}) {
    sigaddset(&signals, signal);
  }
  if (pthread_sigmask(SIG_BLOCK, &signals, nullptr) != 0) {
    return fail(Errc::system, "cannot block signals", errno);
  }
  const int fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  return fd < 0 ? Result<int>(fail(Errc::system, "cannot watch signals", errno)) : fd;
}

/// The engine's settings are the environment's, but for what makes an agent one.
Result<Config> engine_config() {
  auto config = load_config(Environment(), nullptr);
  if (config) {
    config->use_progress_thread = true;
    config->progress_threads = 1;
    config->idle_spin_us = 0;
    config->idle_yield_us = 0;  // nobody waits for it in microseconds
  }
  return config;
}

/// Names come from other processes and hosts, and may be no UTF-8.
std::string json_of(const AgentView& view) {
  return status_of(view).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<HttpAnswer> page_of(const AgentView& view, const std::string& counters_dir,
                                  const std::string& path) {
  if (path == "/") {
    return HttpAnswer{"text/html; charset=utf-8", agent_page()};
  }
  if (path == "/metrics") {
    return HttpAnswer{"text/plain; version=0.0.4; charset=utf-8", metrics_of(view)};
  }
  if (path == "/status.json") {
    return HttpAnswer{"application/json", json_of(view)};
  }
  if (path == "/counters") {
    return HttpAnswer{"application/octet-stream",
                      counters_of_processes(counters_dir, view.counters_of)};
  }
  return std::nullopt;
}

/// All that must be there before the first actor starts.
struct Beginning {
  Fd lock;
  Fd signals;
  Fd registrations;
  Fd page;
  std::shared_ptr<FlowBoard> board;
};

Result<Beginning> begin_agent(const AgentDirectory& directory, const AgentSettings& settings,
                              AgentView& view) {
  Beginning made;
  auto lock = lock_directory(directory);
  if (!lock) {
    return lock.error();
  }
  made.lock = std::move(*lock);
  auto signals = take_signals();
  if (!signals) {
    return signals.error();
  }
  made.signals = Fd(*signals);
  if (settings.page) {
    auto listening = open_listener(settings.page->address, std::to_string(settings.page->port));
    if (!listening) {
      return fail(Errc::system,
                  fmt::format("the page cannot be served at {} (\"page\" in the settings)",
                              settings.page->text()),
                  listening.error().sys);
    }
    made.page = Fd(listening->fd);
    view.page =
        fmt::format("http://{}/", SocketPoint{settings.page->address, listening->port}.text());
  }
  auto previous = HintTable::open(directory.path(), 0);
  SteadyClock clock;
  auto writer = HintWriter::create(directory, {settings.slots, settings.heartbeat}, clock.now());
  if (!writer) {
    return writer.error();
  }
  made.board = std::make_shared<FlowBoard>(std::move(*writer), settings.connections_per_client,
                                           settings.policy, previous ? *previous : nullptr);
  // Last: whoever connects is served.
  auto socket = open_agent_socket(directory, settings.all_users || !settings.users.empty());
  if (!socket) {
    return socket.error();
  }
  made.registrations = Fd(*socket);
  return made;
}

Result<void> adopt_all(Worker& worker, std::vector<std::unique_ptr<Actor>> actors) {
  for (auto& actor : actors) {
    if (auto adopted = worker.adopt(std::move(actor)); !adopted) {
      return adopted.error();
    }
  }
  return {};
}

}  // namespace

Result<int> run_agent(const std::string& settings_path, const AgentSettings& settings) {
  auto config = engine_config();
  if (!config) {
    return config.error();
  }
  const std::string path =
      AgentDirectory::chosen(settings.directory.empty() ? config->agent_dir : settings.directory);
  auto directory = AgentDirectory::make(path);
  if (!directory) {
    return directory.error();
  }
  AgentView view;
  ShareHistory history;
  view.directory = path;
  view.history = &history;
  auto begun = begin_agent(*directory, settings, view);
  if (!begun) {
    return begun.error();
  }
  std::promise<int> status;
  std::future<int> ended = status.get_future();
  auto engine = Engine::start(*config);
  if (!engine) {
    return engine.error();
  }
  auto telemetry = std::make_unique<TelemetryPort>(begun->board, settings, time_of_day);
  auto nics = std::make_unique<NicMeter>(begun->board, *telemetry, settings);
  auto reporter = std::make_unique<Reporter>(begun->board, *telemetry);
  auto registrations = std::make_unique<RegistrationPort>(
      begun->board, begun->registrations.release(), registration_limits(settings),
      [&view] { return json_of(view); });
  AgentActors parts{begun->board, registrations.get(), telemetry.get(), nics.get(), reporter.get()};
  view.board = begun->board.get();
  view.registrations = parts.registrations;
  view.telemetry = parts.telemetry;
  view.nics = parts.nics;
  Keeper::Options options;
  options.settings_path = settings_path;
  options.settings = settings;
  options.signals = begun->signals.release();
  options.manager = ServiceManager::from_environment();
  options.finish = [&status](int value) { status.set_value(value); };
  std::vector<std::unique_ptr<Actor>> actors;
  // Who says something at its end comes before whom it says it through.
  actors.push_back(std::move(reporter));
  actors.push_back(std::move(telemetry));
  actors.push_back(std::move(nics));
  actors.push_back(std::make_unique<Keeper>(std::move(options), std::move(parts), view, history));
  // From here on there is a view to show.
  actors.push_back(std::move(registrations));
  if (settings.page) {
    actors.push_back(
        std::make_unique<HttpPort>(begun->page.release(), *settings.page,
                                   [&view, dir = config->counters_dir](const std::string& at) {
                                     return page_of(view, dir, at);
                                   }));
  }
  if (auto adopted = adopt_all((*engine)->worker(0), std::move(actors)); !adopted) {
    return adopted.error();
  }
  const int result = ended.get();
  engine->reset();
  return result;
}

}  // namespace nccl_ha::tools
