// What verbs hands out: contexts, domains, completion queues and their channels.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "tests/rig/nic/event_pipe.h"

namespace nccl_ha::emulated {

class Device;
class Pair;

struct Context : ibv_context {
  Device* on = nullptr;
  uint32_t generation = 0;  ///< of the device when it was opened
  EventPipe<ibv_async_event> events;
  std::atomic<uint32_t> users{0};  ///< domains and queues
  bool taken_away = false;         ///< with the NIC's mutex held
};

struct Domain : ibv_pd {
  std::atomic<uint32_t> users{0};
};

struct Channel : ibv_comp_channel {
  EventPipe<ibv_cq*> events;
};

struct Handle : ibv_ah {
  ibv_ah_attr route{};
};

/// One that was not polled yet.
struct Entry {
  ibv_wc wc{};
  Pair* pair = nullptr;
  bool receive = false;
  uint64_t done = 0;  ///< sends of the pair that are over with it
};

/// Any thread.
class Queue : public ibv_cq {
 public:
  enum class Pushed : uint8_t { ok, overran, lost };
  Pushed push(const Entry& entry);
  int poll(int room, ibv_wc* out);
  void arm();
  /// It takes nothing any more.
  void end();
  /// Of a queue pair that is gone.
  void drop(const Pair* pair);
  std::atomic<uint32_t> users{0};
  std::atomic<uint32_t> events_open{0};  ///< that were read, not acknowledged

 private:
  std::mutex lock_;
  std::deque<Entry> ready_;
  std::atomic<size_t> count_{0};
  bool armed_ = false;
  bool overran_ = false;
};

/// Asynchronous events that are about the queue pair.
inline bool is_of_pair(const ibv_async_event& event) {
  return event.event_type == IBV_EVENT_QP_FATAL || event.event_type == IBV_EVENT_QP_REQ_ERR ||
         event.event_type == IBV_EVENT_QP_ACCESS_ERR;
}

inline Context& of(ibv_context* context) { return *static_cast<Context*>(context); }
inline Domain& of(ibv_pd* domain) { return *static_cast<Domain*>(domain); }
inline Queue& of(ibv_cq* cq) { return *static_cast<Queue*>(cq); }

}  // namespace nccl_ha::emulated
