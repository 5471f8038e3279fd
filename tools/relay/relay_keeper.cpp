#include "tools/relay/relay_keeper.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "relay/relay_node.h"
#include "runtime/base/log.h"

namespace nccl_ha::tools {

RelayKeeper::RelayKeeper(Options options) : options_(std::move(options)) {
  watchdog_timer_.bind([](void* self) { static_cast<RelayKeeper*>(self)->stroke_watchdog(); },
                       this);
  look_timer_.bind([](void* self) { static_cast<RelayKeeper*>(self)->look(); }, this);
}

RelayKeeper::~RelayKeeper() {
  stop();
  if (options_.signals >= 0) {
    close(options_.signals);
  }
}

void RelayKeeper::start(Context& context) {
  context_ = &context;
  if (auto watch = context.streams().watch_fd(options_.signals, this)) {
    watch_ = std::move(*watch);
  } else {
    NHA_LOG_ERROR("the relay node hears no signals: {}", watch.error().message());
  }
  static_cast<void>(options_.manager.ready(options_.summary));
  if (options_.manager.watchdog()) {
    stroke_watchdog();
  }
  if (options_.outdated) {
    context.timers().arm(look_timer_, context.now() + look_apart);
  }
}

void RelayKeeper::stop() {
  watch_.reset();
  if (context_ != nullptr) {
    context_->timers().cancel(watchdog_timer_);
    context_->timers().cancel(look_timer_);
  }
}

void RelayKeeper::look() {
  context_->timers().arm(look_timer_, context_->now() + look_apart);
  if (!ending_ && options_.outdated()) {
    ending_ = true;
    options_.begin_anew();
  }
}

void RelayKeeper::stroke_watchdog() {
  static_cast<void>(options_.manager.alive());
  context_->timers().arm(watchdog_timer_, context_->now() + *options_.manager.watchdog());
}

void RelayKeeper::on_readable(int fd) {
  signalfd_siginfo info{};
  while (read(fd, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    on_signal();
  }
}

void RelayKeeper::on_signal() {
  if (std::exchange(ending_, true) || !options_.node) {
    options_.finish();  // asked twice, or nobody's path leads through here
    return;
  }
  static_cast<void>(options_.manager.stopping());
  context_->send_self({*options_.node, relay::RelayNode::drain,
                       static_cast<uint32_t>(context_->config().mesh_drain_ms)});
}

}  // namespace nccl_ha::tools
