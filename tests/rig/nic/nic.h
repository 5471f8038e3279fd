// A NIC with RDMA for the ranks of one machine: reliable queue pairs between processes, over
// datagram sockets that carry only descriptions; the bytes are read from the other process's
// memory.
//
// What arrives in a GPU's memory (registered by DMA-BUF) is kept apart until a read through this
// NIC pushes it there, as PCIe permits.  So a flush that is missing or comes early gives old bytes.
#pragma once

#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace nccl_ha::emulated {

using Clock = std::chrono::steady_clock;

constexpr uint32_t inline_max = 512;
constexpr size_t pieces_max = 4;

struct Region : ibv_mr {
  bool on_device = false;
};

struct Channel : ibv_comp_channel {
  int write_end = -1;  ///< addresses of completion queues go through a pipe
};

struct Queue : ibv_cq {
  std::deque<ibv_wc> ready;
  bool armed = false;
};

struct Piece {
  uint64_t address = 0;
  uint64_t length = 0;
};

enum class MessageKind : uint32_t { write, send, read, answer, probe };

/// What goes over the sockets.
struct Message {
  MessageKind kind = MessageKind::probe;
  uint32_t from = 0;  ///< queue pairs
  uint32_t to = 0;
  pid_t process = 0;    ///< whose memory the pieces are in
  uint64_t number = 0;  ///< of the request, and of its answer
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t immediate = 0;
  bool has_immediate = false;
  uint32_t status = 0;  ///< ibv_wc_status of an answer
  uint32_t piece_count = 0;
  std::array<Piece, pieces_max> pieces{};
  uint32_t inline_bytes = 0;
  std::array<char, inline_max> data{};
};

struct Send {
  uint64_t id = 0;
  uint64_t number = 0;
  ibv_wc_opcode opcode{};
  uint32_t bytes = 0;
  bool signaled = false;
};

struct Receive {
  uint64_t id = 0;
  Piece piece;
};

struct Pair : ibv_qp {
  uint32_t peer = 0;
  uint64_t next_number = 0;
  bool all_signaled = false;
  std::deque<Send> sends;        ///< without an answer yet
  std::deque<Receive> receives;  ///< not used yet
  std::deque<Message> arrived;   ///< not dealt with: there is no receive, or the pair is not ready
};

class Nic {
 public:
  static Nic& instance();

  uint32_t number() const { return number_; }
  std::mutex& mutex() { return mutex_; }

  // --- with the mutex held
  uint32_t new_pair_number();
  void add(Pair* pair) { pairs_[pair->qp_num] = pair; }
  void remove(Pair* pair) { pairs_.erase(pair->qp_num); }
  Region* add_region(std::unique_ptr<Region> region);
  bool remove_region(Region* region);
  /// Of a local key; nullptr where it is not valid for the whole range.
  Region* region_of(uint32_t key, uint64_t address, uint64_t length);
  void request(Pair& pair, const Send& send, Message message);
  void change_state(Pair& pair, ibv_qp_state state);
  void deal_with_arrived(Pair& pair);

 private:
  Nic();
  void work();
  void take(const Message& message);
  void take_answer(const Message& message);
  ibv_wc_status execute(Pair& pair, const Message& message);
  void land(const Region& region, uint64_t address, std::vector<char> bytes);
  void push_to_devices(Clock::time_point arrived_until);
  void complete(ibv_cq* cq, const ibv_wc& wc);
  void fail(Pair& pair, ibv_wc_status status);
  void post(const Message& message);
  bool flush_outgoing();
  void fail_peers_of(uint32_t nic);
  void probe_silent_peers();
  void work_once(std::vector<pollfd>& waited);

  struct Peer {
    int socket = -1;
    std::deque<Message> outgoing;
  };
  struct Staged {
    Clock::time_point due;
    uint64_t address = 0;
    std::vector<char> bytes;
  };

  std::mutex mutex_;
  uint32_t number_ = 0;
  int socket_ = -1;
  int wake_ = -1;
  uint32_t next_pair_ = 0;
  static constexpr uint32_t remote_key = 1U << 31;  ///< what a region's remote key has besides
  uint32_t next_key_ = 0x1000;
  std::map<uint32_t, Pair*> pairs_;
  std::map<uint32_t, std::unique_ptr<Region>> regions_;  ///< by key
  std::map<uint32_t, Peer> peers_;                       ///< by number
  std::deque<Staged> staged_;
  Clock::time_point next_probe_{};
};

}  // namespace nccl_ha::emulated
