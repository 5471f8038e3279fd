// The transport agent's end of a simulated UNIX socket, with a real table of hints.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/agent_protocol.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/telemetry/hint_writer.h"

namespace nccl_ha::test {

/// Does what it is told to; counts what it hears.
class SimulatedAgent final : public Actor, private AcceptorOwner, private StreamOwner {
 public:
  enum class Manner : uint8_t {
    proper,
    refuses,      ///< each connection
    turns_out,    ///< each process, with a reason
    other_flow,   ///< answers for a flow that nobody asked for
    garbage,      ///< is no agent
    mute,         ///< never answers
    other_table,  ///< names a generation that is not the table's
    newer         ///< speaks another version
  };

  SimulatedAgent(const std::string& directory, int listener, Manner manner,
                 Duration heartbeat = std::chrono::milliseconds(20))
      : directory_(directory), listener_(listener), manner_(manner), heartbeat_(heartbeat) {}
  const char* name() const override { return "simulated-agent"; }
  void start(Context& context) override {
    context_ = &context;
    auto place = AgentDirectory::make(directory_);
    ASSERT_TRUE(place) << place.error().message();
    auto table = HintWriter::create(*place, {64, heartbeat_}, context.now());
    ASSERT_TRUE(table) << table.error().message();
    writer = std::move(*table);
    auto acceptor = context.streams().adopt_listener(listener_, this);
    ASSERT_TRUE(acceptor) << acceptor.error().message();
    acceptor_ = std::move(*acceptor);
  }
  void on(const Message&) override {}
  void stop() override { end(); }
  /// As if it were killed.
  void end() {
    streams_.clear();
    acceptor_.reset();
  }
  void set_manner(Manner manner) { manner_ = manner; }

  std::unique_ptr<HintWriter> writer;
  std::map<uint64_t, FlowAnnouncement> connections;
  uint32_t streams_seen = 0;
  uint32_t streams_ended = 0;
  uint32_t left = 0;

 private:
  struct Client {
    std::unique_ptr<Stream> stream;
    AgentReader reader;
  };

  void on_accept(int fd) override {
    ++streams_seen;
    auto stream = context_->streams().adopt_fd(fd, this);
    ASSERT_TRUE(stream);
    streams_.push_back({std::move(*stream), {}});
  }
  void on_acceptor_error(const Error&) override {}
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override {
    for (Client& client : streams_) {
      if (client.stream.get() == &stream) {
        ASSERT_TRUE(client.reader.feed(bytes));
        while (const auto message = client.reader.next()) {
          answer(stream, *message);
        }
      }
    }
  }
  void on_stream_closed(Stream& stream, const Error&) override {
    ++streams_ended;
    connections.clear();
    streams_.remove_if([&](const Client& client) { return client.stream.get() == &stream; });
  }
  void answer(Stream& stream, const AgentReader::Message& message) {
    const auto say = [&](const std::vector<std::byte>& frame) {
      static_cast<void>(stream.write(frame));
    };
    switch (message.type) {
      case AgentMessage::hello:
        welcome(say);
        break;
      case AgentMessage::enter: {
        const auto announcement = decode_announcement(message.payload);
        ASSERT_TRUE(announcement);
        if (manner_ == Manner::refuses) {
          say(encode(message.connection, AgentRefusal{Errc::no_memory, "all slots are taken"}));
          return;
        }
        connections[message.connection] = *announcement;
        const uint64_t flow = ha::flow_hash(announcement->flow);
        const auto slot = static_cast<uint32_t>(message.connection % writer->slots());
        writer->write(slot, flow, {256, 0}, context_->now());
        say(encode(message.connection,
                   FlowPlace{slot, manner_ == Manner::other_flow ? flow + 2 : flow,
                             writer->generation()}));
        break;
      }
      case AgentMessage::leave:
        ++left;
        connections.erase(message.connection);
        say(encode_agent(AgentMessage::left, message.connection));
        break;
      default:
        ADD_FAILURE() << "the client says " << static_cast<int>(message.type);
    }
  }
  template <class Say>
  void welcome(const Say& say) {
    switch (manner_) {
      case Manner::mute:
        return;
      case Manner::turns_out:
        say(encode(0, AgentRefusal{Errc::invalid_usage, "not this user"}));
        return;
      case Manner::garbage:
        say(std::vector<std::byte>(100, std::byte{'x'}));
        return;
      default:
        AgentWelcome welcome;
        welcome.generation = writer->generation() + (manner_ == Manner::other_table ? 2 : 0);
        welcome.version = manner_ == Manner::newer ? 99 : agent_version;
        say(encode(welcome));
    }
  }

  const std::string directory_;
  const int listener_;
  Manner manner_;
  const Duration heartbeat_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  std::list<Client> streams_;
};

}  // namespace nccl_ha::test
