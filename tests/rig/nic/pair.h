// A queue pair: its requester, its responder, and datagrams.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "tests/rig/nic/objects.h"
#include "tests/rig/nic/wire.h"

namespace nccl_ha::emulated {

class Nic;

struct Piece {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t key = 0;
};

/// A work request of the send queue.
struct Send {
  uint64_t id = 0;
  uint64_t index = 0;  ///< of all sends of the pair
  ibv_wr_opcode opcode{};
  bool signaled = false;
  bool forbidden = false;
  uint32_t immediate = 0;
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t bytes = 0;
  std::vector<Piece> pieces;
  std::vector<char> inlined;
  uint64_t first = 0;      ///< sequence number
  uint64_t packets = 1;    ///< of this side
  uint64_t came_back = 0;  ///< bytes of a read
  // Datagrams.
  Place to;
  uint32_t to_pair = 0;
  uint32_t queue_key = 0;

  bool reads() const { return opcode == IBV_WR_RDMA_READ; }
};

struct Receive {
  uint64_t id = 0;
  Piece piece;
};

/// What RTR and RTS say.
struct Route {
  uint32_t peer = 0;
  Place to;
  ibv_ah_attr way{};  ///< as it was asked for
  uint16_t pkey_index = 0;
  uint64_t retry_after = 0;  ///< nanoseconds, 0: never
  uint32_t retry_max = 0;
  uint32_t not_ready_max = 0;
  uint8_t not_ready_timer = 0;
  uint32_t access = 0;  ///< what the peer may do
  uint32_t queue_key = 0;
  unsigned port = 1;
};

/// With the NIC's mutex held, unless stated otherwise.
class Pair : public ibv_qp {
 public:
  Pair(Nic& nic, Context& owner, const ibv_qp_init_attr& attributes);

  // --- verbs
  int modify(const ibv_qp_attr& attributes, int mask);
  int post_send(ibv_send_wr* requests, ibv_send_wr** bad);
  int post_receive(ibv_recv_wr* requests, ibv_recv_wr** bad);
  const ibv_qp_cap& limits() const { return limits_; }
  const Route& route() const { return route_; }
  Context& owner() const { return owner_; }
  /// Negotiated, or its own.
  ibv_ece ece{};

  // --- the NIC's thread
  void take(const Header& header, std::span<const char> payload);
  void on_time(uint64_t now);
  /// Sends as much as window and wire permit.
  void pump();
  void acknowledge();  ///< what it owes
  void stop(ibv_qp_state state);
  /// It fails without a completion of anything.
  void go_silent() { silent_ = true; }
  bool moves() const;
  /// Its owner was told that it is in error, reset or gone, and it is not.
  void pretend_end() { pretended_ = true; }

  // --- any thread
  void on_polled(const Entry& entry);
  std::atomic<uint32_t> events_open{0};  ///< asynchronous ones that were read, not acknowledged

  uint64_t timer = 0;  ///< the NIC's: when on_time() is due

 private:
  bool datagrams() const { return qp_type == IBV_QPT_UD; }
  int describe(const ibv_send_wr& request, Send* out) const;
  ibv_wc_status check_local(const Send& send) const;
  void complete_send(const Send& send, ibv_wc_status status);
  void complete_receive(ibv_wc_status status, const Header& header, uint32_t bytes);
  void flush_all();
  void account(Entry& entry, bool receive, uint64_t done);

  // Requester (requester.cpp).
  bool send_packet(Send& send, uint64_t sequence);
  void on_acknowledged(uint64_t sequence);
  void on_refused(const Header& header);
  void on_response(const Header& header, std::span<const char> payload);
  void go_back(uint64_t sequence);
  void fail_front(ibv_wc_status status);
  void arm(uint64_t now);
  Send* find(uint64_t sequence);

  // Responder (responder.cpp).
  void on_request(const Header& header, std::span<const char> payload);
  std::optional<Refusal> execute(const Header& header, std::span<const char> payload);
  std::optional<Refusal> execute_write(const Header& header, std::span<const char> payload);
  std::optional<Refusal> execute_send(const Header& header, std::span<const char> payload);
  void respond(const Header& header);
  void refuse(const Header& header, Refusal why);

  // Datagrams (datagrams.cpp).
  void send_datagram(Send& send);
  void on_datagram(const Header& header, std::span<const char> payload);

  Nic& nic_;
  Context& owner_;
  ibv_qp_cap limits_{};
  bool all_signaled_ = false;
  bool silent_ = false;
  bool pretended_ = false;
  Route route_;

  std::deque<Send> sends_;  ///< without an answer
  uint64_t posted_sends_ = 0;
  std::atomic<uint64_t> freed_sends_{0};
  uint64_t next_sequence_ = 0;  ///< of the next request
  uint64_t to_send_ = 0;        ///< the packet that goes next
  uint64_t acknowledged_ = 0;   ///< all before it
  uint32_t retries_ = 0;
  uint32_t not_ready_ = 0;
  uint64_t not_ready_until_ = 0;
  uint64_t deadline_ = 0;

  std::deque<Receive> receives_;
  uint64_t posted_receives_ = 0;
  std::atomic<uint64_t> freed_receives_{0};
  uint64_t expected_ = 0;
  uint64_t received_ = 0;  ///< bytes of the message that is coming
  bool told_of_gap_ = false;
  bool owes_ = false;
};

inline Pair& of(ibv_qp* qp) { return *static_cast<Pair*>(qp); }

}  // namespace nccl_ha::emulated
