#include "tools/agent/reporter.h"

#include <utility>

namespace nccl_ha::tools {
namespace {

/// A job's connections begin together: their notices share datagrams.
constexpr Duration gather = std::chrono::milliseconds(1);
constexpr Duration repeat_every = std::chrono::seconds(10);
/// More than that do not wait for others.
constexpr size_t gather_max = 1024;

}  // namespace

Reporter::Reporter(std::shared_ptr<FlowBoard> board, TelemetrySender& sender)
    : board_(std::move(board)), sender_(sender) {
  flush_timer_.bind([](void* self) { static_cast<Reporter*>(self)->flush(); }, this);
  repeat_timer_.bind([](void* self) { static_cast<Reporter*>(self)->tell_all(); }, this);
}

Reporter::~Reporter() { board_->set_observer(nullptr); }

void Reporter::start(Context& context) {
  context_ = &context;
  board_->set_observer(this);
  tell_all();
}

void Reporter::stop() {
  flush();
  board_->set_observer(nullptr);
  context_->timers().cancel(flush_timer_);
  context_->timers().cancel(repeat_timer_);
}

void Reporter::tell_all() {
  context_->timers().arm(repeat_timer_, context_->now() + repeat_every);  // whatever comes of it
  flush();
  for (const auto& [flow, slot] : board_->registry().all()) {
    begun_.push_back({flow, 2});
  }
  flush();
}

void Reporter::on_flow_begun(const ha::Flow& flow) {
  begun_.push_back({flow, 2});
  flush_soon();
}

void Reporter::on_flow_ended(const ha::Flow& flow) {
  ended_.push_back({flow, 2});
  flush_soon();
}

void Reporter::flush_soon() {
  if (begun_.size() + ended_.size() > gather_max) {
    flush();
  } else if (!flush_timer_.armed()) {
    context_->timers().arm(flush_timer_, context_->now() + gather);
  }
}

/// A flow that ended and began again within that time is there.
void Reporter::flush() {
  sender_.send_notices(TelemetryType::flow_ended, std::exchange(ended_, {}));
  std::erase_if(begun_, [&](const FlowNotice& notice) {
    return board_->registry().slot_of(notice.flow) == nullptr;
  });
  sender_.send_notices(TelemetryType::flow_begun, std::exchange(begun_, {}));
}

}  // namespace nccl_ha::tools
