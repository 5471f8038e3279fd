// Where processes of this host register their connections: the agent's UNIX socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "actors/agent_protocol.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/stream.h"
#include "runtime/telemetry/agent_directory.h"
#include "tools/agent/flow_board.h"

namespace nccl_ha::tools {

/// Who is at the other end of a UNIX socket, as the kernel says.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> peer_credentials(int fd);

/// A listening socket of that name in the directory, in place of one that an agent left which was
/// killed.  `everybody`: other users may connect.
Result<int> open_agent_socket(const AgentDirectory& directory, bool everybody);

class RegistrationPort final : public Actor, private AcceptorOwner, private StreamOwner {
 public:
  struct Limits {
    uint32_t clients = 4096;
    bool all_users = false;
    std::vector<uid_t> users;                  ///< besides root and this user
    Duration hello = std::chrono::seconds(5);  ///< to say who it is
  };
  struct Counts {
    uint64_t accepted = 0;
    uint64_t refused = 0;    ///< streams, of users that may not or too many
    uint64_t malformed = 0;  ///< streams that ended with garbage
    uint64_t late = 0;       ///< streams that did not say who they are in time
    uint64_t lost = 0;       ///< streams that ended with connections still registered
  };
  /// `listener`: ownership passes; `status`: what ask_status is answered with.
  RegistrationPort(std::shared_ptr<FlowBoard> board, int listener, Limits limits,
                   std::function<std::string()> status);
  ~RegistrationPort() override;
  const char* name() const override { return "agent-registrations"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;
  void set_limits(const Limits& limits) { limits_ = limits; }
  /// It cannot let any process in, and has said why.
  bool failed() const { return failed_; }
  /// No process is let in any more.
  void close_door() { acceptor_.reset(); }
  const Counts& counts() const { return counts_; }
  /// Processes that have said who they are.
  size_t clients() const;

 private:
  struct Client {
    ha::FlowRegistry::Client id = 0;
    std::unique_ptr<Stream> stream;
    AgentReader reader;
    PeerCredentials who;
    std::string host;
    Instant since{};
    bool known = false;  ///< it has said hello
    bool asked = false;  ///< for the status, which a stream is told once
    size_t connections = 0;
  };
  using Place = std::list<Client>::iterator;

  void on_accept(int fd) override;
  void on_acceptor_error(const Error& error) override;
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  Result<void> admit(int fd, PeerCredentials& who) const;
  /// The user whose share of slots and places counts; 0: nobody's, for root and the agent's own.
  static ha::FlowRegistry::User share_of(const PeerCredentials& who);
  /// False: the client is gone.
  bool answer(Place client, const AgentReader::Message& message);
  bool answer_enter(Place client, const AgentReader::Message& message);
  bool say(Place client, const std::vector<std::byte>& frame);
  bool refuse(Place client, const Error& why);
  void remove(Place client);
  Place find(const Stream& stream);
  void end_late_ones();

  std::shared_ptr<FlowBoard> board_;
  int listener_;
  Limits limits_;
  const std::function<std::string()> status_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  bool failed_ = false;
  std::list<Client> clients_;
  ha::FlowRegistry::Client last_id_ = 0;
  Timer timer_;
  Counts counts_;
};

}  // namespace nccl_ha::tools
