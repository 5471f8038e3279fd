#include "tools/agent/keeper.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/log.h"

namespace nccl_ha::tools {

RegistrationPort::Limits registration_limits(const AgentSettings& settings) {
  RegistrationPort::Limits limits;
  limits.clients = settings.clients;
  limits.all_users = settings.all_users;
  limits.users = settings.users;
  return limits;
}

Keeper::Keeper(Options options, AgentActors actors, AgentView& view, ShareHistory& history)
    : options_(std::move(options)), actors_(std::move(actors)), view_(view), history_(history) {
  beat_timer_.bind([](void* self) { static_cast<Keeper*>(self)->beat(); }, this);
  tick_timer_.bind([](void* self) { static_cast<Keeper*>(self)->tick(); }, this);
  sample_timer_.bind([](void* self) { static_cast<Keeper*>(self)->sample(); }, this);
  watchdog_timer_.bind([](void* self) { static_cast<Keeper*>(self)->stroke_watchdog(); }, this);
}

Keeper::~Keeper() {
  watch_.reset();
  if (options_.signals >= 0) {
    close(options_.signals);
  }
}

void Keeper::start(Context& context) {
  context_ = &context;
  view_.context = &context;
  view_.started = context.now();
  show_counters();
  auto watch = context.streams().watch_fd(options_.signals, this);
  if (!watch) {
    NHA_LOG_ERROR("agent: signals cannot be heard: {}", watch.error().message());
    end(1);
    return;
  }
  watch_ = std::move(*watch);
  if (actors_.telemetry->failed()) {
    end(1);  // it has said why
    return;
  }
  beat();
  tick();
  sample();
  if (options_.manager.watchdog()) {
    stroke_watchdog();
  }
  if (auto said = options_.manager.ready(summary()); !said) {
    NHA_LOG_WARN("agent: {}", said.error().message());
  }
  NHA_LOG_INFO("agent: ready in {}{}", view_.directory,
               view_.page.empty() ? "" : ", its page is at " + view_.page);
}

void Keeper::stop() {
  watch_.reset();
  for (Timer* timer : {&beat_timer_, &tick_timer_, &sample_timer_, &watchdog_timer_}) {
    if (context_ != nullptr) {
      context_->timers().cancel(*timer);
    }
  }
}

std::string Keeper::summary() const {
  return fmt::format("{} processes, {} connections, {} flows", actors_.registrations->clients(),
                     actors_.board->registry().connections(), actors_.board->registry().flows());
}

void Keeper::end(int status) {
  if (!std::exchange(ended_, true)) {
    options_.finish(status);
  }
}

void Keeper::show_counters() {
  view_.counters_of =
      options_.settings.all_counters ? CounterOwner::anybody : CounterOwner::this_user;
}

void Keeper::beat() {
  actors_.board->give_heartbeat(context_->now());
  context_->timers().arm(beat_timer_, context_->now() + options_.settings.heartbeat);
}

void Keeper::tick() {
  context_->timers().arm(tick_timer_, context_->now() + tick_every);  // whatever comes of it
  if (actors_.registrations->failed()) {
    end(1);  // it begins after this one, and has said why
    return;
  }
  actors_.board->tick(context_->now());
  if (view_.draining && (actors_.registrations->clients() == 0 || context_->now() >= drained_by_)) {
    end(0);
  }
}

void Keeper::sample() {
  context_->timers().arm(sample_timer_, context_->now() + sample_every);
  history_.sample(*actors_.board);
}

void Keeper::stroke_watchdog() {
  static_cast<void>(options_.manager.alive());
  context_->timers().arm(watchdog_timer_, context_->now() + *options_.manager.watchdog());
}

void Keeper::on_readable(int fd) {
  signalfd_siginfo info{};
  while (read(fd, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    on_signal(info.ssi_signo);
  }
}

void Keeper::on_signal(uint32_t signal) {
  if (signal == SIGHUP) {
    reload();
  } else if (view_.draining) {
    end(0);  // asked twice
  } else {
    drain();
  }
}

void Keeper::reload() {
  static_cast<void>(options_.manager.reloading());
  auto next = AgentSettings::read(options_.settings_path);
  if (!next) {
    NHA_LOG_ERROR("agent: goes on with the settings that it has: {}", next.error().message());
  } else {
    if (const std::string fixed = options_.settings.fixed_differences(*next); !fixed.empty()) {
      NHA_LOG_WARN("agent: a restart is needed for a change of {}", fixed);
    }
    next->keep_fixed(options_.settings);
    options_.settings = std::move(*next);
    show_counters();
    actors_.board->set_policy(options_.settings.policy);
    actors_.board->set_connections_per_client(options_.settings.connections_per_client);
    actors_.registrations->set_limits(registration_limits(options_.settings));
    actors_.telemetry->set_settings(options_.settings);
    actors_.nics->set_settings(options_.settings);
    actors_.reporter->tell_all();
    ++view_.reloads;
    NHA_LOG_INFO("agent: has read its settings again");
  }
  static_cast<void>(options_.manager.ready(summary()));
}

void Keeper::drain() {
  NHA_LOG_INFO("agent: ends; {}", summary());
  static_cast<void>(options_.manager.stopping());
  actors_.registrations->close_door();
  view_.draining = true;
  drained_by_ = context_->now() + options_.settings.drain;
}

}  // namespace nccl_ha::tools
