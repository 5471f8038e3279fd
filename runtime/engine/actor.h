// Actors: single-threaded objects pinned to one worker, driven by messages.
#pragma once

#include <cstdint>
#include <type_traits>

namespace nccl_ha {

class Context;

/// Names an actor on its worker.  A message to an actor that is gone is counted and dropped.
struct ActorId {
  uint32_t index = 0;
  uint32_t generation = 0;  ///< 0: nobody
  bool operator==(const ActorId&) const = default;
};

/// What actors on different threads exchange: small and plain.  `kind` is the receiver's enum.
struct Message {
  ActorId to;
  uint32_t kind = 0;
  uint32_t arg = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
};
static_assert(std::is_trivially_copyable_v<Message> && sizeof(Message) <= 48);

/// All members run on the worker's thread; none may block.
class Actor {
 public:
  Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;
  virtual ~Actor() = default;
  virtual const char* name() const = 0;
  /// Once, before any message.
  virtual void start(Context& context) = 0;
  virtual void on(const Message& message) = 0;
  /// At engine stop, before destruction: say goodbye, release streams.
  virtual void stop() {}
  /// Memory ran out in the middle of something of its worker's, perhaps its own, and what was half
  /// done then nobody knows.  May throw std::bad_alloc.
  virtual void on_no_memory() {}
  /// After stop(): it still has something to say, and removes itself when that is done.  It is
  /// destroyed without that when the engine's time for that is over.
  virtual bool lingers() const { return false; }
  /// After stop(): something is on its way of which its caller was told that it is done.
  virtual bool owes() const { return false; }
  ActorId id() const { return id_; }

 private:
  friend class Worker;
  ActorId id_;
};

}  // namespace nccl_ha
