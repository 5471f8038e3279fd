// A path that leads through other hosts: the end of it in this process.
//
// The host where connect() is active names the route, dials the first relay on it and asks it for a
// session; each host on the way asks the next one.  Then messages travel as frames on the hops
// (frame.h), and each host's neighbour is the only one that it has to do with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "relay/hop_source.h"
#include "relay/message_receiver.h"
#include "relay/message_sender.h"
#include "relay/path_endpoints.h"
#include "runtime/base/run_limit.h"

namespace nccl_ha::relay {

class RelayPath final : public fabric::Path,
                        private fabric::PathOwner,
                        private PathEndpoints::Member,
                        private SessionStream::Owner {
 public:
  struct Options {
    NodeId self{};
    uint32_t chunk_bytes = 65536;
    uint16_t slots = 16;  ///< for frames, at each host on the way and for each direction
    size_t relays_max = 4;
    SessionKeys keys;  ///< of relays and ends; none: they need none
    uint8_t way = 0;   ///< of its connection's (Way)
    fabric::PathTraits traits;
  };
  /// `hops` and `next` outlive the path.  PathOptions::route names the relays; where it names none,
  /// connect() asks `next` for a way to the peer.
  static Result<std::unique_ptr<RelayPath>> make(Context& context, HopSource& hops, NextHops& next,
                                                 const Options& own,
                                                 const fabric::PathOptions& options,
                                                 fabric::PathOwner* owner);
  ~RelayPath() override;

  std::span<const std::byte> local_address() const override { return address_; }
  Result<void> connect(std::span<const std::byte> peer_address) override;
  fabric::PathState state() const override { return state_; }
  fabric::CompletionStatus cause() const override { return ending_.cause; }
  Errc post_write(const fabric::WritePost& post) override;
  Errc post_receive() override;
  /// invalid_usage: no device puts in place what comes by its hop.
  Errc post_flush(const fabric::FlushPost& post) override;
  const fabric::PathTraits& traits() const override { return traits_; }
  void failure_domains(fabric::FailureDomains& domains) const override;
  /// Of the peer itself: what the first relay has taken says nothing of it.
  uint64_t progress() const override { return work_.sender.arrived(); }
  void flush_acks() override;
  void fail(const Error& why) override;
  void await_stop() override;
  void abandon() override;
  std::string describe() const override;

 private:
  RelayPath(Context& context, HopSource& hops, NextHops& next, const Options& own,
            const fabric::PathOptions& options, fabric::PathOwner* owner);

  // setting up (relay_path_setup.cpp)
  Result<void> dial();
  void dial_again();
  void look_again(const Error& why);
  Result<std::vector<HopPlace>> places();
  bool insists() const {
    return traits_.reaches_gpu_memory && hops_.has_gpu_memory(options_.domain);
  }
  /// Either end of the connection wants it.
  bool encrypts() const { return options_.shared && options_.shared->encrypts; }
  Result<void> make_hop(const HopPlace& place, uint16_t slots, uint32_t chunk_bytes,
                        uint16_t theirs_most);
  Result<void> make_first_hop();
  void ask_over_first_hop();
  bool goes_round();
  void ask();
  bool asks_again(const SetupRefusal& refusal);
  void on_refusal(const SetupRefusal& refusal);
  Result<void> on_ack(const SetupAck& ack);
  Result<void> on_key_question(const SessionKeyQuestion& question);
  Result<void> accept();
  void wait_for_other_kind();
  void answer();
  void open(uint32_t chunk_bytes);
  void refuse(const std::string& why);
  void on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) override;
  void on_session_open(SessionStream& stream) override;
  void on_session_message(SessionStream& stream, SessionMessage message) override;
  void on_session_lost(SessionStream& stream, const Error& error) override;
  void on_deadline();

  // the hop
  void on_completion(const fabric::Completion& completion) override;
  void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) override;
  void on_fence_stuck(fabric::Path& path, const Error& error) override;
  void on_fence_late(fabric::Path& path) override;
  void on_fence_proven(fabric::Path& path) override;
  void on_path_address(fabric::Path& path) override;
  void refuse_way();
  void blame_way(const Error& why);
  void pump();
  void become_ready();
  bool on_frame(uint32_t slot);
  bool on_outcome(MessageReceiver::Outcome outcome);
  void refuse_write();

  void ack();
  void owe_ack();
  void soon();
  void on_soon();
  void complete(const MessageSender::Message& message, fabric::CompletionStatus status);
  void break_path(fabric::CompletionStatus status, uint64_t sequence, const Error& why);
  void flush_when_fenced();

  Context& context_;
  HopSource& hops_;
  NextHops& next_;
  const Options own_;
  fabric::PathOptions options_;
  fabric::PathOwner* owner_;
  fabric::PathTraits traits_;
  std::vector<NodeId> relays_;
  bool named_ = false;  ///< by whoever made the path, and not to be changed
  std::shared_ptr<PathEndpoints> endpoints_;
  PathEndpoint local_;
  PathEndpoint peer_;
  std::vector<std::byte> address_;

  struct Work {
    Work(HopSource& hops, const fabric::PathOptions& options)
        : sender(hops, options.domain, options.writes_max),
          receiver(hops.memory(), options.domain, options.receives_max) {}
    MessageSender sender;
    MessageReceiver receiver;
  };
  Work work_;
  /// What the other end was told of it last, and when it is told next at the latest.
  struct Told {
    uint64_t delivered = 0;
    uint64_t posted = 0;
    Timer later;
  };
  Told told_;
  HopLine line_;  ///< what its hop uses is above it
  std::unique_ptr<SessionStream> stream_;
  std::optional<SetupRequest> request_;  ///< that came before connect()
  std::optional<Error> link_down_;       ///< a cable further on; the owner has not heard of it
  struct Setup {
    size_t choice = 0;         ///< of the places where the first hop may begin
    uint32_t chunk_bytes = 0;  ///< that was agreed
    RunLimit limit;            ///< of all of it
  };
  Setup setup_;

  /// How it ends.
  struct Ending {
    Error error;
    fabric::CompletionStatus cause = fabric::CompletionStatus::ok;
    uint64_t sequence = 0;  ///< of the message that failed
    bool told = false;
    bool flushed = false;
  };
  fabric::PathState state_ = fabric::PathState::idle;
  Ending ending_;
  Timer deadline_;
  Timer soon_;
  Timer redial_;
};

}  // namespace nccl_ha::relay
