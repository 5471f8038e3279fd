// `nccl-ha trace show`: events as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

/// Which events are wanted; what is empty or 0 leaves nothing out.
struct TraceFilter {
  std::vector<std::string> events;  ///< by name
  std::string process;              ///< part of "host:pid"
  std::string connection;           ///< part of the label, or the key in hexadecimal digits
  int64_t path = -1;
  double since_s = 0;  ///< before the last event
  size_t last = 0;     ///< so many, at most
};

/// The events that pass, by time.
std::vector<const TraceMoment*> filtered(const Timeline& timeline, const TraceFilter& filter);
/// One line, without the time.
std::string moment_text(const Timeline& timeline, const TraceMoment& moment);

/// Of names of events that the filter has and no process knows: what there are; else empty.
std::string unknown_events(const Timeline& timeline, const TraceFilter& filter);
void print_moments(const Timeline& timeline, const TraceFilter& filter);
/// What is wrong with the sources, and how their clocks lie; to stderr.
void print_remarks(const Timeline& timeline);
/// One line for each process: its shift and bound.
std::string clocks_text(const Timeline& timeline);

}  // namespace nccl_ha::tools
