#include "tools/trace/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/trace/messages.h"

namespace nccl_ha::tools {
namespace {

// Numbers of fields and values in Perfetto's schema.
namespace schema {
constexpr uint32_t trace_packet = 1;
constexpr uint32_t packet_timestamp = 8;
constexpr uint32_t packet_sequence = 10;
constexpr uint32_t packet_event = 11;
constexpr uint32_t packet_sequence_flags = 13;
constexpr uint32_t packet_descriptor = 60;
constexpr uint32_t track_uuid = 1;
constexpr uint32_t track_name = 2;
constexpr uint32_t track_process = 3;
constexpr uint32_t track_thread = 4;
constexpr uint32_t track_parent = 5;
constexpr uint32_t track_counter = 8;
constexpr uint32_t process_pid = 1;
constexpr uint32_t process_name = 6;
constexpr uint32_t thread_pid = 1;
constexpr uint32_t thread_tid = 2;
constexpr uint32_t thread_name = 5;
constexpr uint32_t counter_unit_name = 6;
constexpr uint32_t event_annotation = 4;
constexpr uint32_t event_type = 9;
constexpr uint32_t event_track = 11;
constexpr uint32_t event_name = 23;
constexpr uint32_t event_counter = 30;
constexpr uint32_t event_flow = 47;
constexpr uint32_t annotation_uint = 3;
constexpr uint32_t annotation_text = 6;
constexpr uint32_t annotation_name = 10;
constexpr uint64_t type_begin = 1;
constexpr uint64_t type_end = 2;
constexpr uint64_t type_instant = 3;
constexpr uint64_t type_counter = 4;
constexpr uint64_t state_cleared = 1;
}  // namespace schema

// What comes first of the same moment: ends, then beginnings, then ends of slices that take no
// time, and last the beginnings of what follows them.
constexpr int end_order = 0;
constexpr int begin_order = 1;
constexpr int empty_end_order = 2;
constexpr int follower_order = 3;

/// An event of the trace, to be sorted by time.
struct Packet {
  int64_t time_ns = 0;
  int order = 0;  ///< of the same moment
  ProtoWriter event;
};

class PerfettoWriter {
 public:
  explicit PerfettoWriter(const Timeline& timeline) : timeline_(timeline) {}

  std::string write() {
    name_processes();
    for (const TraceMoment& moment : timeline_.moments()) {
      add_moment(moment);
    }
    for (const TraceMessage& message : messages_of(timeline_)) {
      add_message(message);
    }
    std::stable_sort(packets_.begin(), packets_.end(), [](const Packet& a, const Packet& b) {
      return std::pair(a.time_ns, a.order) < std::pair(b.time_ns, b.order);
    });
    std::string out = descriptors_;
    for (const Packet& packet : packets_) {
      ProtoWriter whole;
      whole.number(schema::packet_timestamp, static_cast<uint64_t>(std::max<int64_t>(
                                                 packet.time_ns - timeline_.begin_ns(), 0)));
      whole.number(schema::packet_sequence, 1);
      whole.message(schema::packet_event, packet.event);
      append(out, whole);
    }
    return out;
  }

 private:
  static void append(std::string& out, const ProtoWriter& packet) {
    ProtoWriter entry;
    entry.message(schema::trace_packet, packet);
    out += entry.bytes();
  }

  void describe_track(const ProtoWriter& descriptor) {
    ProtoWriter packet;
    packet.number(schema::packet_sequence, 1);
    if (descriptors_.empty()) {
      packet.number(schema::packet_sequence_flags, schema::state_cleared);
    }
    packet.message(schema::packet_descriptor, descriptor);
    append(descriptors_, packet);
  }

  /// Several processes of different hosts may have one number: here each has its own.
  static uint64_t number_of(uint32_t process) { return process + 1; }

  void name_processes() {
    for (uint32_t i = 0; i < timeline_.processes().size(); ++i) {
      const CounterSnapshot& snapshot = timeline_.processes()[i].snapshot;
      ProtoWriter process;
      process.number(schema::process_pid, number_of(i));
      process.text(schema::process_name,
                   fmt::format("{} {}", snapshot.program, timeline_.process_name(i)));
      ProtoWriter descriptor;
      process_tracks_.push_back(++last_track_);
      descriptor.number(schema::track_uuid, process_tracks_.back());
      descriptor.message(schema::track_process, process);
      describe_track(descriptor);
      for (uint32_t ring = 0; ring < snapshot.rings.size(); ++ring) {
        ProtoWriter thread;
        thread.number(schema::thread_pid, number_of(i));
        thread.number(schema::thread_tid, number_of(i) * 1000 + ring);
        thread.text(schema::thread_name, timeline_.threads(i)[ring].name);
        ProtoWriter track;
        thread_tracks_[{i, ring}] = ++last_track_;
        track.number(schema::track_uuid, last_track_);
        track.message(schema::track_thread, thread);
        describe_track(track);
      }
    }
  }

  uint64_t named_track(uint64_t parent, const std::string& name,
                       const char* counter_unit = nullptr) {
    ProtoWriter descriptor;
    descriptor.number(schema::track_uuid, ++last_track_);
    descriptor.text(schema::track_name, name);
    descriptor.number(schema::track_parent, parent);
    if (counter_unit != nullptr) {
      ProtoWriter counter;
      counter.text(schema::counter_unit_name, counter_unit);
      descriptor.message(schema::track_counter, counter);
    }
    describe_track(descriptor);
    return last_track_;
  }

  uint64_t connection_track(int32_t connection) {
    const auto [found, made] = connection_tracks_.try_emplace(connection, 0);
    if (made) {
      const TraceConnection& one = timeline_.connection(connection);
      found->second = named_track(process_tracks_[one.process], one.label);
    }
    return found->second;
  }

  using Rows = std::vector<std::pair<uint64_t, int64_t>>;  ///< track, and until when it is in use
  uint64_t row_of(Rows& rows, int32_t connection, std::string_view name, int64_t begin,
                  int64_t end) {
    const int64_t busy_until = end > begin ? end : begin + 1;  // one without duration has it too
    for (auto& [track, until] : rows) {
      if (until <= begin) {
        until = busy_until;
        return track;
      }
    }
    rows.emplace_back(named_track(connection_track(connection), std::string(name)), busy_until);
    return rows.back().first;
  }

  /// Slices of one track lie within each other, chunks under way beside each other: each gets the
  /// first track of its path that is free.
  uint64_t path_track(int32_t connection, uint32_t path, int64_t begin, int64_t end) {
    return row_of(path_tracks_[{connection, path}], connection,
                  timeline_.connection(connection).path_name(path), begin, end);
  }

  uint64_t depth_track(int32_t connection, uint32_t path) {
    const auto [found, made] = depth_tracks_.try_emplace({connection, path}, 0);
    if (made) {
      const std::string name = timeline_.connection(connection).path_name(path);
      found->second = named_track(connection_track(connection), name + " under way", "bytes");
    }
    return found->second;
  }

  static void annotate(ProtoWriter& event, std::string_view name, uint64_t value) {
    ProtoWriter annotation;
    annotation.text(schema::annotation_name, name);
    annotation.number(schema::annotation_uint, value);
    event.message(schema::event_annotation, annotation);
  }
  static void annotate(ProtoWriter& event, std::string_view name, std::string_view value) {
    ProtoWriter annotation;
    annotation.text(schema::annotation_name, name);
    annotation.text(schema::annotation_text, value);
    event.message(schema::event_annotation, annotation);
  }
  static ProtoWriter begin_event(uint64_t type, uint64_t track, std::string_view name) {
    ProtoWriter event;
    event.number(schema::event_type, type);
    event.number(schema::event_track, track);
    if (!name.empty()) {
      event.text(schema::event_name, name);
    }
    return event;
  }

  void slice(uint64_t track, std::string_view name, int64_t begin, int64_t end,
             const TraceMessage& message, const std::vector<uint64_t>& flows,
             int order = begin_order) {
    ProtoWriter event = begin_event(schema::type_begin, track, name);
    annotate(event, "group", message.group);
    annotate(event, "position", message.position);
    annotate(event, "bytes", message.bytes);
    annotate(event, "connection", fmt::format("{:016x}", message.key));
    for (const uint64_t flow : flows) {
      event.fixed(schema::event_flow, flow);
    }
    packets_.push_back({begin, order, std::move(event)});
    packets_.push_back({end, begin == end ? empty_end_order : end_order,
                        begin_event(schema::type_end, track, "")});
  }

  /// What is no part of a message: on its thread, or on its connection if it is about one.
  void add_moment(const TraceMoment& moment) {
    if (moment.event == TraceEvent::queue_depth && moment.connection >= 0) {
      const auto path = static_cast<uint32_t>(timeline_.value(moment, "path").value_or(0));
      ProtoWriter event =
          begin_event(schema::type_counter, depth_track(moment.connection, path), "");
      event.number(schema::event_counter, timeline_.value(moment, "open").value_or(0));
      packets_.push_back({moment.time_ns, begin_order, std::move(event)});
      return;
    }
    if (moment.event && is_of_caller(*moment.event)) {
      add_call(moment);
      return;
    }
    if (moment.event && is_of_message(*moment.event)) {
      return;
    }
    const uint64_t track = moment.connection >= 0 ? connection_track(moment.connection)
                                                  : thread_tracks_[{moment.process, moment.thread}];
    const CounterSnapshot::EventKind& kind = timeline_.kind(moment);
    ProtoWriter event = begin_event(schema::type_instant, track, kind.name);
    for (const CounterSnapshot::Field& field : kind.fields) {
      if (field.values.empty()) {
        annotate(event, field.name, value_of(moment.raw, field.word, field.shift, field.bits));
      } else {
        annotate(event, field.name, to_text(field, moment.raw));
      }
    }
    packets_.push_back({moment.time_ns, begin_order, std::move(event)});
  }

  /// On its thread, with what it is about.
  void add_call(const TraceMoment& moment) {
    const CounterSnapshot::EventKind& kind = timeline_.kind(moment);
    ProtoWriter event = begin_event(schema::type_instant,
                                    thread_tracks_[{moment.process, moment.thread}], kind.name);
    for (const CounterSnapshot::Field& field : kind.fields) {
      annotate(event, field.name, to_text(field, moment.raw));
    }
    if (moment.connection >= 0) {
      annotate(event, "connection", timeline_.connection(moment.connection).label);
    }
    packets_.push_back({moment.time_ns, begin_order, std::move(event)});
  }

  static bool is_of_message(TraceEvent event) {
    return event == TraceEvent::transfer_posted || event == TraceEvent::transfer_sent ||
           event == TraceEvent::transfer_completed || event == TraceEvent::chunk_posted ||
           event == TraceEvent::chunk_acked || event == TraceEvent::chunk_arrived;
  }

  /// A request on the tracks of its connection: queued, under way, done and not noticed.
  struct Request {
    const char* name;
    const char* rows;
    int32_t connection;
    int64_t asked_ns;
    int64_t begun_ns;
    int64_t ended_ns;
    int64_t noticed_ns;
  };
  void add_request(const TraceMessage& message, const Request& one,
                   const std::vector<uint64_t>& flows) {
    if (one.connection < 0 || one.begun_ns == unseen || one.ended_ns < one.begun_ns) {
      return;
    }
    const bool queued = one.asked_ns != unseen && one.asked_ns < one.begun_ns;
    const bool late = one.noticed_ns > one.ended_ns;  // unseen is less than all
    const uint64_t track =
        row_of(request_tracks_[one.connection], one.connection, one.rows,
               queued ? one.asked_ns : one.begun_ns, late ? one.noticed_ns : one.ended_ns);
    if (queued) {
      slice(track, fmt::format("queued {}", message.group), one.asked_ns, one.begun_ns, message,
            {});
    }
    slice(track, fmt::format("{} {}", one.name, message.group), one.begun_ns, one.ended_ns, message,
          flows);
    if (late) {
      slice(track, fmt::format("not noticed {}", message.group), one.ended_ns, one.noticed_ns,
            message, {}, follower_order);
    }
  }

  void add_message(const TraceMessage& message) {
    const uint64_t flow = ++last_flow_ << 8;
    std::vector<uint64_t> flows;
    for (const TraceChunk& chunk : message.chunks) {
      flows.push_back(flow + (chunk.number & 255U));
    }
    add_request(message,
                {"send", "sends", message.sender, message.asked_ns, message.begun_ns,
                 message.sent_ns, message.noticed_ns},
                flows);
    for (const TraceChunk& chunk : message.chunks) {
      const int64_t end = chunk.acked_ns != unseen ? chunk.acked_ns : chunk.arrived_ns;
      if (message.sender >= 0 && chunk.posted_ns != unseen && end != unseen &&
          end >= chunk.posted_ns) {
        slice(path_track(message.sender, chunk.path, chunk.posted_ns, end),
              fmt::format("{}.{}.{}", message.group, message.position, chunk.number),
              chunk.posted_ns, end, message, {flow + (chunk.number & 255U)});
      }
      if (message.receiver >= 0 && chunk.arrived_ns != unseen) {
        ProtoWriter event = begin_event(
            schema::type_instant, connection_track(message.receiver),
            fmt::format("arrived {}.{}.{}", message.group, message.position, chunk.number));
        annotate(event, "bytes", uint64_t{chunk.bytes});
        annotate(event, "path", timeline_.connection(message.receiver).path_name(chunk.path));
        event.fixed(schema::event_flow, flow + (chunk.number & 255U));
        packets_.push_back({chunk.arrived_ns, begin_order, std::move(event)});
      }
    }
    if (message.position == 0) {
      add_request(message,
                  {"receive", "receives", message.receiver, message.receive_asked_ns,
                   message.announced_ns, message.received_ns, message.receive_noticed_ns},
                  {});
    }
  }

  const Timeline& timeline_;
  std::string descriptors_;
  std::vector<Packet> packets_;
  std::vector<uint64_t> process_tracks_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> thread_tracks_;
  std::map<int32_t, uint64_t> connection_tracks_;
  std::map<std::pair<int32_t, uint32_t>, Rows> path_tracks_;
  std::map<std::pair<int32_t, uint32_t>, uint64_t> depth_tracks_;
  std::map<int32_t, Rows> request_tracks_;
  uint64_t last_track_ = 0;
  uint64_t last_flow_ = 0;
};

}  // namespace

void ProtoWriter::varint(uint64_t value) {
  while (value >= 128) {
    bytes_.push_back(static_cast<char>((value & 127U) | 128U));
    value >>= 7U;
  }
  bytes_.push_back(static_cast<char>(value));
}

void ProtoWriter::number(uint32_t field, uint64_t value) {
  varint(uint64_t{field} << 3U);
  varint(value);
}

void ProtoWriter::fixed(uint32_t field, uint64_t value) {
  varint(uint64_t{field} << 3U | 1U);
  for (int i = 0; i < 8; ++i) {
    bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
}

void ProtoWriter::text(uint32_t field, std::string_view value) {
  varint(uint64_t{field} << 3U | 2U);
  varint(value.size());
  bytes_.append(value);
}

std::string perfetto_of(const Timeline& timeline) { return PerfettoWriter(timeline).write(); }

}  // namespace nccl_ha::tools
