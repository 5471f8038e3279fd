// Connection actors: one per NCCL connection and side.  They own the control stream and the path,
// carry requests of the shared channel to the path and publish what became of them.
//
// Life: handshake (hello, welcome, connectivity check) -> ready -> closing -> gone, or failed from
// anywhere.  A failure is final: it is published once, told to the peer, and every later call of
// the caller gets it.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "actors/channel.h"
#include "actors/control.h"
#include "actors/immediate.h"
#include "runtime/actor.h"
#include "runtime/context.h"
#include "runtime/fabric/provider.h"
#include "runtime/stream.h"
#include "runtime/timer_wheel.h"

namespace nccl_ha {

class Engine;

/// What both sides do alike.
class Connection : public Actor, protected StreamOwner, protected fabric::PathOwner {
 public:
  Connection(fabric::Provider& provider, Engine& engine, size_t worker);
  ~Connection() override;

  void start(Context& context) override;
  void stop() override;
  void on(const Message& message) override;

 protected:
  virtual Channel* channel() = 0;
  virtual void begin() = 0;  ///< start of the handshake
  virtual void on_doorbell() = 0;
  virtual void on_close() = 0;  ///< the caller closes
  virtual void on_control(const ControlReader::Message& message) = 0;
  virtual void on_paths_ready() = 0;
  virtual void on_failure(const Error& error) { (void)error; }
  virtual void on_deadline();  ///< the handshake took too long

  /// Makes `count` paths at `attachment_`; `local` chooses interface and family for datagrams.
  Result<void> make_paths(const sockaddr* local, size_t count, bool active);
  Result<void> connect_paths(const std::vector<PathAddress>& peers);
  std::vector<PathAddress> path_addresses() const;
  Result<fabric::Registration> register_memory(void* base, size_t bytes);
  bool post_credit(fabric::Path& path);  ///< a receive for the peer's next immediate
  void fail_paths(const Error& why);
  void send_control(const std::vector<std::byte>& bytes);
  void arm_deadline(Duration in);
  void disarm_deadline();
  /// First failure: log, publish, tell the peer, tear down.
  void fail_connection(const Error& error, bool tell_peer = true);
  /// Ends the actor; the stream lingers by itself until the last words are out.
  void finish();
  /// For messages: address, host and process as far as they are known.
  std::string peer_text() const;
  /// Where it would be if it were connected.
  virtual std::string wanted_peer() const { return "a peer"; }
  virtual void on_peer_gone(const Error& error);

  // StreamOwner
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  // PathOwner
  void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) override;

  fabric::Provider& provider_;
  Engine& engine_;
  const size_t worker_index_;
  Context* context_ = nullptr;
  std::unique_ptr<Stream> stream_;
  ControlReader reader_;
  fabric::Attachment attachment_;
  std::vector<fabric::OwnedPath> paths_;
  size_t paths_ready_ = 0;
  uint8_t traffic_class_ = 0;
  uint8_t service_level_ = 0;
  bool flushes_ = false;  ///< paths will be asked to flush
  std::vector<fabric::Registration> memory_;
  uint64_t domain_ = 0;
  uint32_t receives_ = 0;
  std::string peer_host_;  ///< empty: it has not said
  uint32_t peer_process_ = 0;
  bool ready_ = false;
  bool failed_ = false;
  bool finished_ = false;

 private:
  Timer deadline_;
};

/// Where a connector may reach its peer; tried in order.
/// An address without its port, for messages.
std::string address_text(const sockaddr_storage& address);

struct Route {
  sockaddr_storage to{};
  sockaddr_storage from{};  ///< ss_family 0: any
};

/// The connecting, sending side.
class SendConnection final : public Connection {
 public:
  struct Options {
    std::vector<Route> routes;
    uint64_t nonce = 0;
    Duration timeout{};
    int traffic_class = -1;  ///< asked for by NCCL; -1: none
  };
  SendConnection(fabric::Provider& provider, Engine& engine, size_t worker,
                 std::shared_ptr<SendChannel> channel, Options options);
  ~SendConnection() override;

  const char* name() const override { return "send-connection"; }

 private:
  Channel* channel() override { return channel_.get(); }
  void begin() override;
  void on_doorbell() override;
  void on_close() override;
  void on_control(const ControlReader::Message& message) override;
  void on_paths_ready() override;
  void on_deadline() override;
  void on_stream_open(Stream& stream) override;
  void on_peer_gone(const Error& error) override;
  void on_completion(const fabric::Completion& completion) override;

  std::string wanted_peer() const override;
  void note_route_error(const Error& error);
  void try_route();
  void send_hello();
  void on_welcome(std::span<const std::byte> payload);
  void on_peer_closed(std::span<const std::byte> payload);
  void on_clear_to_send(const fabric::Completion& completion);
  void pump();
  void begin_request(uint16_t index);
  bool post_next();

  /// The request whose chunks are being posted; a full queue interrupts it at any point.
  struct Cursor {
    SendRequest* request = nullptr;
    uint32_t chunk = 0;
    uint32_t chunk_bytes = 0;  ///< of each but the last
    uint32_t chunks = 0;
    uint32_t offset = 0;  ///< within the chunk: what plain writes have covered
  };

  std::shared_ptr<SendChannel> channel_;
  Options options_;
  size_t route_ = 0;
  std::string route_errors_;
  std::unique_ptr<CtsRing> cts_;          ///< the peer writes it
  std::unique_ptr<SizeRecords> records_;  ///< what is written into the peer's
  uint32_t records_key_ = 0;
  uint64_t sizes_address_ = 0;
  uint32_t sizes_key_ = 0;
  Cursor cursor_;
  size_t next_path_ = 0;
  uint32_t record_above_ = UINT32_MAX;  ///< longer chunks announce their end separately
  bool said_hello_ = false;
};

class ListenChannel;

/// The accepted, receiving side.
class ReceiveConnection final : public Connection {
 public:
  ReceiveConnection(fabric::Provider& provider, Engine& engine, size_t worker, int fd,
                    size_t device, std::shared_ptr<ListenChannel> listener);
  ~ReceiveConnection() override;

  const char* name() const override { return "receive-connection"; }

 private:
  Channel* channel() override { return channel_.get(); }
  void begin() override;
  void on_doorbell() override;
  void on_close() override;
  void on_control(const ControlReader::Message& message) override;
  void on_paths_ready() override;
  void on_failure(const Error& error) override;
  void on_deadline() override;
  void on_peer_gone(const Error& error) override;
  void on_completion(const fabric::Completion& completion) override;

  void on_hello(std::span<const std::byte> payload);
  void turn_away(const char* why);
  void stage(ReceiveRequest& request);
  bool announcing_is_due(uint64_t ahead) const;
  void announce();
  void flush(ReceiveRequest& request);
  void on_data(const fabric::Completion& completion);

  int fd_;
  std::shared_ptr<ListenChannel> listener_;
  std::shared_ptr<ReceiveChannel> channel_;
  bool welcome_ = false;  ///< the peer knew the nonce
  uint64_t cts_address_ = 0;
  uint32_t cts_key_ = 0;
  std::unique_ptr<CtsRing> staging_;  ///< what is written into the peer's
  uint32_t staging_key_ = 0;
  uint32_t staged_ = 0;        ///< where the next entry goes
  uint32_t held_entries_ = 0;  ///< before that, not announced yet
  uint32_t held_groups_ = 0;
  std::unique_ptr<SizeRecords> sizes_;
  uint64_t groups_posted_ = 0;
  uint64_t groups_completed_ = 0;
  std::array<ReceiveRequest*, cts_slots> open_{};
};

}  // namespace nccl_ha
