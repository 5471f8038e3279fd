// Tells the host's transport agent of connections, and finds what it says of their flows
// (docs/agent.md).
//
// Nothing waits for the agent: where there is none, or none any more, a connection splits its data
// by its own policy, and the client goes on looking for one.  It connects when the first connection
// registers, with backoff, registers all of them anew after the agent was restarted, and lets go
// when the last one has ended.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/agent_protocol.h"
#include "ha/backoff.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/stream.h"
#include "runtime/telemetry/hint_table.h"

namespace nccl_ha {

/// One per worker; of that worker's thread, with all that it hands out.
class AgentClient final : public std::enable_shared_from_this<AgentClient>, private StreamOwner {
 public:
  /// A connection's registration, which ends with it.  Keeps the client.
  class Registration {
   public:
    Registration(std::shared_ptr<AgentClient> client, uint64_t id, FlowAnnouncement announcement)
        : client_(std::move(client)), id_(id), announcement_(std::move(announcement)) {}
    ~Registration() { client_->leave(*this); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

    /// What the agent says of the connection's flow now, of CLOCK_MONOTONIC; nullopt: nothing that
    /// holds, so that the connection's own policy decides.  Some nanoseconds; asks nobody.
    std::optional<Hint> hint(Instant now) const {
      if (!table_) {
        return std::nullopt;
      }
      const HintReading reading = table_->read(place_.slot, place_.flow, now, silence_max_);
      return reading.fresh() && (reading.hint.flags & hint_layout::untold) == 0
                 ? std::optional(reading.hint)
                 : std::nullopt;
    }
    /// The part of the second rail (SUP), in parts per 1024.
    std::optional<uint32_t> share(Instant now) const {
      const auto now_said = hint(now);
      return now_said ? std::optional(now_said->share) : std::nullopt;
    }
    /// An agent has given it a slot, whether or not that agent still runs.
    bool registered() const { return table_ != nullptr; }

   private:
    friend class AgentClient;
    const std::shared_ptr<AgentClient> client_;
    const uint64_t id_;
    const FlowAnnouncement announcement_;
    std::shared_ptr<const HintTable> table_;
    FlowPlace place_;
    Duration silence_max_{};
    bool refused_ = false;
  };

  /// That of the context's worker.
  static std::shared_ptr<AgentClient> of(Context& context);
  ~AgentClient() override;
  AgentClient(const AgentClient&) = delete;
  AgentClient& operator=(const AgentClient&) = delete;

  /// A connection begins.  Returns at once; the agent's answer comes later, or never.
  std::unique_ptr<Registration> enter(FlowAnnouncement announcement);

  /// The agent has answered, and its table is mapped.
  bool attached() const { return table_ != nullptr; }
  /// How often it was welcomed by an agent.
  uint64_t attachments() const { return attachments_; }

 private:
  explicit AgentClient(Context& context);
  void leave(Registration& registration);
  void attempt();
  void on_timer();
  void try_again(const Error& why);
  void drop_stream();
  bool write(std::span<const std::byte> frame);
  bool announce(Registration& registration);
  void announce_more();
  void on_answer();
  void on_message(const AgentReader::Message& message);
  void on_welcome(const AgentWelcome& welcome);
  void on_refusal(uint64_t connection, const AgentRefusal& refusal);
  void on_place(uint64_t connection, const FlowPlace& place);
  void on_stream_open(Stream& stream) override;
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;

  Context& context_;
  std::map<uint64_t, Registration*> registrations_;  ///< by their ids
  uint64_t last_id_ = 0;
  ha::Backoff backoff_;
  Timer timer_;  ///< the next attempt, the end of a handshake, or when refused ones are told again
  std::string directory_;
  std::unique_ptr<Stream> stream_;
  AgentReader reader_;
  std::shared_ptr<const HintTable> table_;  ///< of the agent that is connected; null: none is
  // How far the agent was told of registrations, in the order of their ids.
  uint64_t told_to_ = 0;
  uint64_t retold_to_ = UINT64_MAX;  ///< the same for those that it refused; the largest: not now
  size_t unanswered_ = 0;
  uint64_t attachments_ = 0;
  Instant welcomed_at_{};
  std::string told_;  ///< why there is none, as the log has it
};

}  // namespace nccl_ha
