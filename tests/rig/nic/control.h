// Faults of the emulated NICs, in memory that all processes of a test share: a test or `nha-nic`
// writes, the library reads at each packet and each verb.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace nccl_ha::emulated {

constexpr unsigned hosts_max = 254;
constexpr unsigned devices_max = 8;
constexpr unsigned ports_max = 4;

/// What a device is.
enum class Mode : uint32_t {
  running,
  hung,      ///< its firmware answers nothing
  reset,     ///< its driver has let go of it: verbs are refused
  internal,  ///< verbs say success and do nothing; it writes for a while
  removing,  ///< verbs are refused; its memory goes, piece by piece, while data moves; then reset
};

/// Directions of a cable that lead nowhere.
enum Cut : uint32_t { cut_out = 1, cut_in = 2 };

struct PortState {
  std::atomic<uint32_t> cut;
  std::atomic<uint32_t> down;        ///< as the port itself says
  std::atomic<uint64_t> held_until;  ///< packets to it stay in the network until then
};

/// What happened, for tests that must know that their fault did.
struct DeviceCounters {
  std::atomic<uint64_t> verbs;         ///< commands of the firmware
  std::atomic<uint64_t> verbs_failed;  ///< refused, hung or only pretended
  std::atomic<uint64_t> packets;       ///< sent
  std::atomic<uint64_t> lost;          ///< packets that a fault swallowed
  std::atomic<uint64_t> retries;       ///< timeouts after which it sent again
  std::atomic<uint64_t> not_ready;     ///< times that a peer had no receive, so that it waited
  std::atomic<uint64_t> silenced;      ///< completions that were never seen
  std::atomic<uint64_t> forbidden;     ///< requests refused by the setting `forbid`
  std::atomic<uint64_t> behind;   ///< packets written for queue pairs that were said to be over
  std::atomic<uint64_t> revoked;  ///< requests that met memory which a removal had taken
};

struct DeviceState {
  std::atomic<uint32_t> mode;
  std::atomic<uint32_t> generation;  ///< one more each time that it comes back
  std::atomic<uint64_t> since;       ///< nanoseconds of CLOCK_MONOTONIC
  std::atomic<uint64_t> takes;       ///< nanoseconds in which a removal takes its memory
  std::array<PortState, ports_max> ports;
  DeviceCounters counters;
};

/// An asynchronous event to be raised.
struct EventOrder {
  uint32_t host = 0;
  uint32_t device = 0;
  uint32_t port = 0;    ///< counted from 1
  uint32_t type = 0;    ///< ibv_event_type
  uint32_t pair = 0;    ///< number of the queue pair, 0: all
  uint32_t silent = 0;  ///< a queue pair that fails gives nothing back
};

struct SharedState {
  static constexpr uint32_t events_max = 256;
  std::atomic<uint32_t> event_count;  ///< complete ones
  std::array<EventOrder, events_max> events;
  std::array<std::atomic<int32_t>, 256> members;  ///< process by its number on the wire
  std::array<std::array<DeviceState, devices_max>, hosts_max> devices;
};

/// The memory, and how to change it.  Any thread; faults are written by one process at a time.
class Control {
 public:
  /// Empty: memory of this process alone.  Ends the process where the file cannot be had.
  explicit Control(const std::string& file);
  SharedState& state() { return *state_; }
  DeviceState& device(unsigned host, unsigned device) { return state_->devices[host][device]; }
  /// Of the sockets that belong together.
  const std::string& fabric() const { return fabric_; }

  // --- faults; each wakes the processes
  void set_mode(unsigned host, unsigned device, Mode mode);
  /// In order: its memory regions go within so many nanoseconds, and then its queue pairs.
  void remove(unsigned host, unsigned device, uint64_t nanoseconds);
  /// As it was before, for those who open it anew.
  void bring_back(unsigned host, unsigned device);
  /// `directions`: of Cut.  `link`: the port itself sees it, with an event.
  void cut(unsigned host, unsigned device, unsigned port, uint32_t directions, bool link);
  void hold(unsigned host, unsigned device, unsigned port, uint64_t nanoseconds);
  void raise(const EventOrder& order);

 private:
  void wake();

  SharedState* state_ = nullptr;
  std::string fabric_;
};

/// Nanoseconds of CLOCK_MONOTONIC.
uint64_t now_ns();

/// Address of a process's socket: its length.
struct SocketName {
  std::array<char, 128> bytes{};  ///< sockaddr_un
  uint32_t length = 0;
};
SocketName socket_name(const std::string& fabric, unsigned number);

}  // namespace nccl_ha::emulated
