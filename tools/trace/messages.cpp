#include "tools/trace/messages.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace nccl_ha::tools {
namespace {

/// Of one damaged event no more messages come than can be open (cts_slots of actors/).
constexpr uint64_t groups_at_once_max = 64;
/// No chunk goes again more often in earnest; a damaged file may say so.
constexpr size_t postings_looked_at = 64;

class MessageBook {
 public:
  explicit MessageBook(const Timeline& timeline) : timeline_(timeline) {}

  std::vector<TraceMessage> read() {
    for (const TraceMoment& moment : timeline_.moments()) {
      if (moment.event && moment.connection >= 0) {
        take(moment);
      }
    }
    return std::move(messages_);
  }

 private:
  uint64_t number(const TraceMoment& moment, std::string_view field) const {
    return timeline_.value(moment, field).value_or(0);
  }

  /// Both sides' events of a connection come together by its key; one without is named by itself.
  TraceMessage& at(const TraceMoment& moment, uint64_t group, uint32_t position) {
    const auto side = static_cast<size_t>(moment.connection);
    const TraceConnection& connection = timeline_.connections()[side];
    const int32_t one =
        connection.peer < 0 ? moment.connection : std::min(moment.connection, connection.peer);
    const auto [found, made] =
        index_.try_emplace(std::tuple(one, group, position), messages_.size());
    if (made) {
      TraceMessage fresh;
      fresh.key = connection.key;
      fresh.group = group;
      fresh.position = position;
      const int32_t other = connection.peer;
      fresh.sender = connection.sender ? moment.connection : other;
      fresh.receiver = connection.sender ? other : moment.connection;
      messages_.push_back(std::move(fresh));
    }
    return messages_[found->second];
  }

  /// Of a message (its index) and a chunk's number: where its postings are in TraceMessage::chunks.
  using ChunkKey = std::pair<size_t, uint32_t>;

  TraceChunk& chunk_of(TraceMessage& message, uint32_t number, uint32_t bytes,
                       int64_t TraceChunk::*moment) {
    std::vector<size_t>& postings = postings_[{index_of(message), number}];
    for (size_t i = postings.size() - std::min(postings.size(), postings_looked_at);
         i < postings.size(); ++i) {
      TraceChunk& known = message.chunks[postings[i]];
      if (known.*moment == unseen) {
        return known;
      }
    }
    TraceChunk fresh;
    fresh.number = number;
    fresh.bytes = bytes;
    postings.push_back(message.chunks.size());
    message.chunks.push_back(fresh);
    return message.chunks.back();
  }
  size_t index_of(const TraceMessage& message) const {
    return static_cast<size_t>(&message - messages_.data());
  }

  TraceMessage& message_of(const TraceMoment& moment, int64_t TraceMessage::*of_transfer) {
    TraceMessage& message =
        at(moment, number(moment, "group"), static_cast<uint32_t>(number(moment, "position")));
    if (number(moment, "whole") != 0) {
      message.*of_transfer = moment.time_ns;
    }
    return message;
  }

  /// `of_transfer`: the moment is this one too where the chunk is all of its transfer.
  void take_chunk(const TraceMoment& moment, int64_t TraceChunk::*when,
                  int64_t TraceMessage::*of_transfer) {
    TraceMessage& message = message_of(moment, of_transfer);
    TraceChunk& chunk = chunk_of(message, static_cast<uint32_t>(number(moment, "chunk")),
                                 static_cast<uint32_t>(number(moment, "size")), when);
    chunk.*when = moment.time_ns;
    // What is posted anew on another path leaves the older one without an acknowledgement.
    chunk.path = static_cast<uint32_t>(number(moment, "path"));
    if (message.bytes == 0) {
      message.bytes = chunk.bytes;
    }
  }

  /// The same.  Of several postings of a chunk the last one is meant that is on the path.
  void take_ack(const TraceMoment& moment, int64_t TraceChunk::*when,
                int64_t TraceMessage::*of_transfer) {
    TraceMessage& message = message_of(moment, of_transfer);
    const auto chunk = static_cast<uint32_t>(number(moment, "chunk"));
    const auto path = static_cast<uint32_t>(number(moment, "path"));
    const std::vector<size_t>& postings = postings_[{index_of(message), chunk}];
    for (size_t i = 0; i < std::min(postings.size(), postings_looked_at); ++i) {
      TraceChunk& posted = message.chunks[postings[postings.size() - 1 - i]];
      if (posted.path == path && posted.*when == unseen) {
        posted.*when = moment.time_ns;
        return;
      }
    }
    take_chunk(moment, when, of_transfer);
  }

  void take_announcement(const TraceMoment& moment, int64_t TraceMessage::*when) {
    const uint64_t first = number(moment, "group");
    const uint64_t groups = std::min(number(moment, "groups"), groups_at_once_max);
    for (uint64_t group = first; group - first < groups; ++group) {
      TraceMessage& message = at(moment, group, 0);
      if (message.*when == unseen) {
        message.*when = moment.time_ns;
      }
    }
  }

  void take_request(const TraceMoment& moment, int64_t TraceMessage::*of_send,
                    int64_t TraceMessage::*of_receive) {
    const auto what = static_cast<TraceRequest>(number(moment, "what"));
    const auto position = static_cast<uint32_t>(number(moment, "position"));
    if (what == TraceRequest::send) {
      at(moment, number(moment, "group"), position).*of_send = moment.time_ns;
    } else if (what == TraceRequest::receive) {
      at(moment, number(moment, "group"), 0).*of_receive = moment.time_ns;
    }
  }

  void take(const TraceMoment& moment) {
    switch (*moment.event) {
      case TraceEvent::transfer_posted: {
        TraceMessage& message =
            at(moment, number(moment, "group"), static_cast<uint32_t>(number(moment, "position")));
        message.begun_ns = moment.time_ns;
        message.bytes = number(moment, "size");
        break;
      }
      case TraceEvent::request_asked:
        take_request(moment, &TraceMessage::asked_ns, &TraceMessage::receive_asked_ns);
        break;
      case TraceEvent::request_noticed:
        take_request(moment, &TraceMessage::noticed_ns, &TraceMessage::receive_noticed_ns);
        break;
      case TraceEvent::transfer_sent:
        at(moment, number(moment, "group"), static_cast<uint32_t>(number(moment, "position")))
            .sent_ns = moment.time_ns;
        break;
      case TraceEvent::transfer_completed:
        at(moment, number(moment, "group"), 0).received_ns = moment.time_ns;
        break;
      case TraceEvent::chunk_posted:
        take_chunk(moment, &TraceChunk::posted_ns, &TraceMessage::begun_ns);
        break;
      case TraceEvent::chunk_acked:
        take_ack(moment, &TraceChunk::acked_ns, &TraceMessage::sent_ns);
        break;
      case TraceEvent::chunk_arrived:
        take_ack(moment, &TraceChunk::arrived_ns, &TraceMessage::received_ns);
        break;
      case TraceEvent::cts_sent:
        take_announcement(moment, &TraceMessage::announced_ns);
        break;
      case TraceEvent::cts_received:
        take_announcement(moment, &TraceMessage::heard_ns);
        break;
      default:
        break;
    }
  }

  const Timeline& timeline_;
  std::vector<TraceMessage> messages_;
  std::map<std::tuple<int32_t, uint64_t, uint32_t>, size_t> index_;
  std::map<ChunkKey, std::vector<size_t>> postings_;
};

}  // namespace

std::vector<TraceMessage> messages_of(const Timeline& timeline) {
  return MessageBook(timeline).read();
}

}  // namespace nccl_ha::tools
