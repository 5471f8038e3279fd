#include "relay/shape_watch.h"

#include "runtime/base/log.h"

namespace nccl_ha::relay {

void ShapeWatch::start(Context& context) {
  context_ = &context;
  timer_.bind([](void* self) { static_cast<ShapeWatch*>(self)->look(); }, this);
  context.timers().arm(timer_, context.now() + options_.apart);
}

void ShapeWatch::look() {
  if (options_.apart > Duration(0)) {
    context_->timers().arm(timer_, context_->now() + options_.apart);
  }
  const auto view = options_.board->read();
  const auto self = view ? view->topology.find(view->self) : std::nullopt;
  if (!self || view == judged_) {
    return;
  }
  judged_ = view;
  std::string wrong;
  for (const std::string& one : findings(view->topology, *self, options_.expected)) {
    wrong += (wrong.empty() ? "" : "; ") + one;
  }
  if (wrong != told_ && !wrong.empty()) {
    NHA_LOG_WARN("{}", wrong);
  }
  told_ = wrong;
}

void ShapeWatch::stop() {
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
}

}  // namespace nccl_ha::relay
