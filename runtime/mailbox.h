// Bounded multi-producer mailbox of an actor's thread.
//
// Back end: moodycamel's ConcurrentQueue, used only through try_enqueue with one explicit producer
// token per sender.  Two of its properties shape this class.  Blocks stay with the producer that
// took them, so a greedy sender could starve the others for ever: every Address therefore owns a
// credit count, fixed when it is opened, and the queue is sized from the sum.  And it is FIFO per
// producer only, so no order between two senders may be assumed.
// Under ThreadSanitizer, which does not understand the queue's fences, a bounded ring of our own
// with acquire/release stands in, so that TSan sees our hand-over ordering.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/check.h"
#include "runtime/result.h"

#if defined(__SANITIZE_THREAD__)
#define NHA_MAILBOX_RING 1
#else
#define NHA_MAILBOX_RING 0
#include <concurrentqueue/concurrentqueue.h>
#endif

namespace nccl_ha {

/// How a sender rouses a sleeping receiver without a lost wake-up.
///
/// The receiver does sleeping.exchange(1), looks into its mailbox once more, and only then sleeps.
/// A sender publishes its message with a sequentially consistent read-modify-write and then reads
/// `sleeping`.  All four operations are in the one total order of such operations, so either the
/// sender reads 1 and wakes, or the receiver's last look comes after the publication and finds the
/// message.  Publishing with a plain store would not do: on x86 the load may pass it.
struct Waker {
  std::atomic<uint32_t> sleeping{0};
  virtual ~Waker() = default;
  virtual void wake() = 0;  ///< any thread
  /// After publishing.
  void notify() {
    if (sleeping.load(std::memory_order_seq_cst) != 0 &&
        sleeping.exchange(0, std::memory_order_seq_cst) != 0) {
      wake();
    }
  }
};

namespace detail {

#if NHA_MAILBOX_RING
/// Bounded MPSC ring; a slot's sequence number says whose turn it is (after D. Vyukov's design).
template <class T>
class Queue {
 public:
  struct Token {
    explicit Token(Queue&) {}
  };
  Queue(size_t senders, size_t credits_total) {
    size_t size = 2;
    while (size < credits_total + senders) {
      size *= 2;
    }
    cells_ = std::vector<Cell>(size);
    for (size_t i = 0; i < size; ++i) {
      cells_[i].sequence.store(i, std::memory_order_relaxed);
    }
  }
  bool try_push(Token&, const T& value) {
    uint64_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & (cells_.size() - 1)];
      const auto lag = static_cast<int64_t>(cell.sequence.load(std::memory_order_acquire)) -
                       static_cast<int64_t>(position);
      if (lag < 0) {
        return false;
      }
      if (lag == 0 &&
          tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        cell.value = value;
        cell.sequence.store(position + 1, std::memory_order_release);
        return true;
      }
      if (lag > 0) {
        position = tail_.load(std::memory_order_relaxed);
      }
    }
  }
  bool try_pop(T* out) {
    Cell& cell = cells_[head_ & (cells_.size() - 1)];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) {
      return false;
    }
    *out = cell.value;
    cell.sequence.store(head_ + cells_.size(), std::memory_order_release);
    ++head_;
    return true;
  }

 private:
  struct Cell {
    std::atomic<uint64_t> sequence{0};
    T value{};
    Cell() = default;
    Cell(const Cell& other) : sequence(other.sequence.load()), value(other.value) {}
  };
  std::vector<Cell> cells_;
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) uint64_t head_ = 0;
};
#else
struct QueueTraits : moodycamel::ConcurrentQueueDefaultTraits {
  // Most senders hold a handful of credits (a connection rings a doorbell): small blocks.
  static constexpr size_t BLOCK_SIZE = 8;
  static constexpr size_t EXPLICIT_INITIAL_INDEX_SIZE = 32;
};

template <class T>
class Queue {
 public:
  using Raw = moodycamel::ConcurrentQueue<T, QueueTraits>;
  struct Token {
    explicit Token(Queue& queue) : raw(queue.raw_) {}
    moodycamel::ProducerToken raw;
  };
  Queue(size_t senders, size_t credits_total)
      // Each sender's messages may straddle one block more than they fill.
      : raw_(credits_total + senders * 2 * QueueTraits::BLOCK_SIZE), consumer_(raw_) {}
  bool try_push(Token& token, const T& value) { return raw_.try_enqueue(token.raw, value); }
  bool try_pop(T* out) { return raw_.try_dequeue(consumer_, *out); }

 private:
  Raw raw_;
  moodycamel::ConsumerToken consumer_;
};
#endif

}  // namespace detail

template <class M>
class Address;

/// Drained by one thread; open() may be called from any.  When it is held by a shared_ptr, its
/// addresses keep it alive, so that a sender that outlives the receiver stays harmless.
template <class M>
class Mailbox : public std::enable_shared_from_this<Mailbox<M>> {
  static_assert(std::is_trivially_copyable_v<M> && sizeof(M) <= 64, "messages are small and plain");

 public:
  /// At most `senders_max` addresses at a time with `credits_total` credits together.
  Mailbox(size_t credits_total, size_t senders_max, Waker* waker = nullptr)
      : credits_left_(credits_total),
        waker_(waker),
        queue_(senders_max, credits_total),
        senders_(senders_max) {
    free_.reserve(senders_max);
    for (size_t i = senders_max; i > 0; --i) {
      free_.push_back(static_cast<uint32_t>(i - 1));
    }
  }
  ~Mailbox() {
    NHA_ASSERT(free_.size() + leaving_.size() == senders_.size(),
               "a mailbox was destroyed before its addresses");
  }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Any thread.  no_memory when senders or credits are used up.
  Result<Address<M>> open(size_t credits);

  /// Receiver.  Hands at most `limit` messages to f(const M&); returns how many.
  template <class F>
  size_t drain(size_t limit, F&& f) {
    // The queue itself would ask every producer in turn; with a thousand connections that is dear.
    if (looks_empty()) {
      return 0;
    }
    size_t count = 0;
    std::array<Envelope, drain_batch> batch;
    while (count < limit) {
      const size_t wanted = std::min(batch.size(), limit - count);
      size_t taken = 0;
      while (taken < wanted && queue_.try_pop(&batch[taken])) {
        ++taken;
      }
      if (taken == 0) {
        break;
      }
      // What the senders look at is written once per batch.  Credits go back before the handlers
      // run, so that a handler's reply may cause the next message.
      published_.fetch_sub(static_cast<int64_t>(taken), std::memory_order_relaxed);
      for (size_t i = 0, run = 0; i < taken; ++i) {
        ++run;
        if (i + 1 == taken || batch[i + 1].sender != batch[i].sender) {
          senders_[batch[i].sender].used.fetch_sub(static_cast<uint32_t>(run),
                                                   std::memory_order_release);
          run = 0;
        }
      }
      count += taken;
      for (size_t i = 0; i < taken; ++i) {
        f(static_cast<const M&>(batch[i].message));
      }
    }
    return count;
  }
  /// Receiver, when it ends: from now on nobody is woken.
  void detach_waker() { waker_.store(nullptr, std::memory_order_release); }
  /// Receiver.  False means certainly not empty.
  bool looks_empty() const { return published_.load(std::memory_order_seq_cst) <= 0; }

 private:
  friend class Address<M>;
  static constexpr size_t drain_batch = 16;
  struct Envelope {
    M message;
    uint32_t sender;
  };
  struct alignas(64) Sender {
    std::atomic<uint32_t> used{0};
    uint32_t credits = 0;
    std::unique_ptr<typename detail::Queue<Envelope>::Token> token;
  };

  void close(uint32_t sender) {
    std::lock_guard lock(mutex_);
    credits_left_ += senders_[sender].credits;
    leaving_.push_back(sender);
  }

  std::mutex mutex_;  // open and close only
  size_t credits_left_;
  std::atomic<Waker*> waker_;
  /// Messages pushed and not yet taken; may run ahead below zero for a moment, as a message can be
  /// taken before its sender has counted it.
  alignas(64) std::atomic<int64_t> published_{0};
  detail::Queue<Envelope> queue_;
  std::vector<Sender> senders_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> leaving_;  // closed, perhaps with messages still queued
};

/// A sender's end.  Movable; one thread at a time.
template <class M>
class Address {
 public:
  Address() = default;
  Address(Address&& other) noexcept
      : mailbox_(std::exchange(other.mailbox_, nullptr)),
        keep_(std::move(other.keep_)),
        sender_(other.sender_),
        rejected_(other.rejected_) {}
  Address& operator=(Address&& other) noexcept {
    if (this != &other) {
      reset();
      mailbox_ = std::exchange(other.mailbox_, nullptr);
      keep_ = std::move(other.keep_);
      sender_ = other.sender_;
      rejected_ = other.rejected_;
    }
    return *this;
  }
  ~Address() { reset(); }

  explicit operator bool() const { return mailbox_ != nullptr; }

  /// False: no credit left; counted, nothing changed, try again later.  Never blocks or allocates.
  [[nodiscard]] bool try_send(const M& message) {
    auto& sender = mailbox_->senders_[sender_];
    if (sender.used.load(std::memory_order_acquire) >= sender.credits) {
      ++rejected_;
      return false;
    }
    sender.used.fetch_add(1, std::memory_order_relaxed);
    if (!mailbox_->queue_.try_push(*sender.token, {message, sender_})) {
      sender.used.fetch_sub(1, std::memory_order_relaxed);
      ++rejected_;
      return false;
    }
    mailbox_->published_.fetch_add(1, std::memory_order_seq_cst);
    if (Waker* waker = mailbox_->waker_.load(std::memory_order_acquire); waker != nullptr) {
      waker->notify();
    }
    return true;
  }
  uint64_t rejected() const { return rejected_; }
  size_t credits_left() const {
    const auto& sender = mailbox_->senders_[sender_];
    return sender.credits - sender.used.load(std::memory_order_acquire);
  }
  void reset() {
    if (mailbox_ != nullptr) {
      std::exchange(mailbox_, nullptr)->close(sender_);
      keep_.reset();
    }
  }

 private:
  friend class Mailbox<M>;
  Address(Mailbox<M>* mailbox, uint32_t sender)
      : mailbox_(mailbox), keep_(mailbox->weak_from_this().lock()), sender_(sender) {}
  Mailbox<M>* mailbox_ = nullptr;
  std::shared_ptr<Mailbox<M>> keep_;
  uint32_t sender_ = 0;
  uint64_t rejected_ = 0;
};

template <class M>
Result<Address<M>> Mailbox<M>::open(size_t credits) {
  std::lock_guard lock(mutex_);
  // Closed senders become free once their last message has been taken out.
  std::erase_if(leaving_, [this](uint32_t sender) {
    const bool empty = senders_[sender].used.load(std::memory_order_acquire) == 0;
    if (empty) {
      free_.push_back(sender);
    }
    return empty;
  });
  if (free_.empty() || credits == 0 || credits > credits_left_) {
    return fail(Errc::no_memory,
                "mailbox: no room for another sender; use more progress threads "
                "(HA_NCCL_PROGRESS_THREADS)");
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  credits_left_ -= credits;
  Sender& sender = senders_[index];
  sender.credits = static_cast<uint32_t>(credits);
  if (!sender.token) {
    sender.token = std::make_unique<typename detail::Queue<Envelope>::Token>(queue_);
  }
  return Address<M>(this, index);
}

}  // namespace nccl_ha
