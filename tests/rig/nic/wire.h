// What goes between processes: packets over datagram sockets, which keep them when the sender dies.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "tests/rig/nic/control.h"

namespace nccl_ha::emulated {

/// A port.
struct Place {
  uint8_t host = 0;
  uint8_t device = 0;
  uint8_t port = 1;
  bool operator==(const Place&) const = default;
};

enum class PacketKind : uint8_t { write, send, read, response, ack, nak, datagram };

enum PacketFlag : uint8_t {
  packet_first = 1,
  packet_last = 2,
  packet_immediate = 4,
  packet_ask = 8,  ///< for an acknowledgement
};

enum class Refusal : uint8_t { sequence, not_ready, access, invalid, operation };

struct Header {
  uint32_t from_pair = 0;
  uint32_t to_pair = 0;
  Place from;
  Place to;
  PacketKind kind = PacketKind::ack;
  uint8_t flags = 0;
  Refusal refusal{};      ///< of a nak
  uint8_t timer = 0;      ///< of a nak: min_rnr_timer
  uint64_t sequence = 0;  ///< of an answer: all before it have arrived
  uint64_t address = 0;   ///< of a response: offset into what was asked for
  uint32_t key = 0;       ///< of a datagram: the queue key
  uint32_t immediate = 0;
  uint32_t length = 0;  ///< that a read asks for
};

constexpr uint32_t pieces_max = 30;  ///< of a request
constexpr uint32_t pair_bits = 16;   ///< of a queue pair's number, below its process's

/// With the NIC's mutex held, unless stated otherwise.
class Wire {
 public:
  explicit Wire(Control& control);
  /// 1 to 255: of this process.
  unsigned number() const { return number_; }
  /// To the process whose queue pair it is.
  bool ready(uint32_t pair) { return peers_[pair >> pair_bits].outgoing.empty(); }
  void send(const Header& header, std::span<const iovec> payload);
  /// False when there is none.  The payload is valid until the next call.
  bool receive(Header* header, std::span<const char>* payload);
  /// Sends what waits; adds what poll() has to wait for.  True when somebody became ready.
  bool flush(std::vector<pollfd>* waited);
  /// Any thread.
  void wake();

 private:
  struct Peer {
    int socket = -1;
    std::deque<std::vector<char>> outgoing;
  };
  bool try_send(unsigned number, Peer& peer, std::span<const iovec> parts);

  Control& control_;
  unsigned number_ = 0;
  int socket_ = -1;
  int wake_ = -1;
  std::map<unsigned, Peer> peers_;  ///< by number
  std::vector<char> buffer_;
};

}  // namespace nccl_ha::emulated
