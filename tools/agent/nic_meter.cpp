#include "tools/agent/nic_meter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::tools {
namespace {

/// How often it is looked what there is of an interface.
constexpr Duration look_apart = std::chrono::seconds(10);

NicMeter::Rail open_rail(const RailSettings& settings) {
  NicMeter::Rail rail;
  rail.interface = settings.interface;
  if (rail.interface.empty()) {
    return rail;
  }
  rail.speed_mbps = settings.speed_mbps;
  if (const auto all = fabric::list_interfaces()) {
    for (const fabric::NetInterface& one : *all) {
      if (one.name == rail.interface) {
        rail.address = host_address(one.addresses.front());
        rail.speed_mbps = settings.speed_mbps != 0 ? settings.speed_mbps : one.speed_mbps;
      }
    }
  }
  rail.sources = nic_sources(rail.interface);
  return rail;
}

template <class T>
uint32_t capped(T value) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(static_cast<uint64_t>(value), std::numeric_limits<uint32_t>::max()));
}

NicReport report_of(const NicMeter::Rail& rail, size_t index) {
  NicReport report;
  report.address = rail.address;
  report.rail = static_cast<uint8_t>(index);
  report.level = rail.load->level;
  report.interval_us = capped(rail.load->interval.count() / 1000);
  report.bytes_out = rail.load->bytes_out;
  report.bytes_in = rail.load->bytes_in;
  report.pauses_out = capped(rail.load->pauses_out);
  report.pauses_in = capped(rail.load->pauses_in);
  report.discards = capped(rail.load->discards);
  report.queue_out = capped(rail.reading->queue_out.value_or(0));
  report.queue_in = capped(rail.reading->queue_in.value_or(0));
  return report;
}

}  // namespace

NicMeter::NicMeter(std::shared_ptr<FlowBoard> board, TelemetrySender& sender,
                   const AgentSettings& settings)
    : board_(std::move(board)), sender_(sender), every_(settings.report_every) {
  timer_.bind([](void* self) { static_cast<NicMeter*>(self)->measure(); }, this);
  set_settings(settings);
}

void NicMeter::set_settings(const AgentSettings& settings) {
  every_ = settings.report_every;
  for (size_t i = 0; i < rails_.size(); ++i) {
    settings_[i] = settings.rails[i];
    rails_[i] = open_rail(settings_[i]);
  }
  board_->on_local({}, context_ != nullptr ? context_->now() : Instant{});
}

void NicMeter::start(Context& context) {
  context_ = &context;
  measure();
}

void NicMeter::stop() {
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
}

void NicMeter::measure_rail(Rail& rail, Instant now) {
  ha::NicReading reading;
  reading.at = now;
  bool any = false;
  for (const auto& source : rail.sources) {
    any = source->add(reading) || any;
  }
  if (!any) {
    if (!rail.silent) {
      NHA_LOG_WARN("agent: nothing is known of the interface {} (\"rails\" in the settings)",
                   rail.interface);
    }
    rail.silent = true;
    rail.reading.reset();
    rail.load.reset();
    return;
  }
  rail.silent = false;
  if (rail.reading) {
    rail.load = ha::nic_load(*rail.reading, reading, rail.speed_mbps);
  }
  rail.reading = reading;
}

/// A NIC may get its driver, its address or its speed after the agent has begun, and another driver
/// later.
void NicMeter::look_again_if_due(size_t i, Instant now) {
  Rail& rail = rails_[i];
  if (now - rail.looked_at < look_apart) {
    return;
  }
  rail.looked_at = now;
  Rail fresh = open_rail(settings_[i]);
  if (fresh.address.family != 0) {  // else it has none, or could not be looked at
    rail.address = fresh.address;
    rail.speed_mbps = fresh.speed_mbps;
  }
  if (rail.silent || fresh.sources.size() > rail.sources.size()) {
    rail.sources = std::move(fresh.sources);
    rail.reading.reset();  // of others
  }
}

void NicMeter::measure() {
  const Instant now = context_->now();
  context_->timers().arm(timer_, now + every_);  // whatever comes of it
  std::vector<NicReport> reports;
  FlowBoard::LocalEnds ends;
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (rail.interface.empty()) {
      continue;
    }
    look_again_if_due(i, now);
    measure_rail(rail, now);
    ends[i] = {rail.load ? rail.load->level : uint8_t{0}, rail.speed_mbps};
    if (rail.load) {
      reports.push_back(report_of(rail, i));
    }
  }
  board_->on_local(ends, now);
  sender_.send_reports(reports);
}

}  // namespace nccl_ha::tools
