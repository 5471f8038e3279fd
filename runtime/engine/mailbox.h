// Bounded multi-producer mailbox of an actor's thread.
//
// Back end: moodycamel's ConcurrentQueue, used only through try_enqueue with one explicit producer
// token per sender.  Two of its properties shape this class.  Blocks stay with the producer that
// took them, so a greedy sender could starve the others for ever: every Address therefore owns a
// credit count, fixed when it is opened, and the queue is sized from the sum.  And it is FIFO per
// producer only, so no order between two senders may be assumed.
//
// In front of the queue stands one slot, a cache line that carries a message and its flag together.
// A message that finds it empty costs one line going over and one coming back; through the queue it
// is five to seven (650 ns instead of 160, measured).  Bursts and senders
// that meet go through the queue. Under ThreadSanitizer, which does not understand the queue's
// fences, a bounded ring of our own with acquire/release takes their place, so that TSan sees our
// hand-over ordering.
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

#include "runtime/base/check.h"
#include "runtime/base/result.h"

#if defined(__SANITIZE_THREAD__)
#define NHA_MAILBOX_RING 1
#else
#define NHA_MAILBOX_RING 0
#include <concurrentqueue/concurrentqueue.h>
#endif

namespace nccl_ha {

/// How a sender wakes a sleeping receiver without a lost wake-up.
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

  /// Receiver.  Hands about `limit` messages, at most one more, to f(const M&); returns how many.
  template <class F>
  size_t drain(size_t limit, F&& f) {
    size_t count = 0;
    Envelope front;
    if (take_front(&front)) {
      give_back(front.sender, 1);
      ++count;
      f(static_cast<const M&>(front.message));
    }
    // The queue itself would ask every producer in turn; with a thousand connections that is dear.
    if (published_.load(std::memory_order_relaxed) <= 0) {
      return count;
    }
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
      // A sender with messages in the queue leaves the slot alone until they are given back below:
      // what it has in the slot now is older than what it has in the batch.
      const bool more = take_front(&front);
      // What the senders look at is written once per batch.  Credits go back before the handlers
      // run, so that a handler's reply may cause the next message.
      published_.fetch_sub(static_cast<int64_t>(taken), std::memory_order_relaxed);
      if (more) {
        give_back(front.sender, 1);
      }
      for (size_t i = 0, run = 0; i < taken; ++i) {
        ++run;
        if (i + 1 == taken || batch[i + 1].sender != batch[i].sender) {
          give_back(batch[i].sender, static_cast<uint32_t>(run));
          run = 0;
        }
      }
      count += taken + (more ? 1 : 0);
      if (more) {
        f(static_cast<const M&>(front.message));
      }
      for (size_t i = 0; i < taken; ++i) {
        f(static_cast<const M&>(batch[i].message));
      }
    }
    return count;
  }
  /// Receiver, when it ends: from now on nobody is woken.
  void detach_waker() { waker_.store(nullptr, std::memory_order_release); }
  /// Receiver.  A quick look that may miss what has only just come; not for the last one before a
  /// sleep.
  bool looks_idle() const {
    return front_.state.load(std::memory_order_relaxed) != FrontState::full &&
           published_.load(std::memory_order_relaxed) <= 0;
  }
  /// Receiver.  False means certainly not empty.
  bool looks_empty() const {
    return front_.state.load(std::memory_order_seq_cst) != FrontState::full &&
           published_.load(std::memory_order_seq_cst) <= 0;
  }

 private:
  friend class Address<M>;
  static constexpr size_t drain_batch = 16;
  struct Envelope {
    M message;
    uint32_t sender;
  };
  /// Counts wrap; only differences matter.
  struct Sender {
    alignas(64) std::atomic<uint32_t> taken{0};  ///< the receiver's: messages taken out so far
    alignas(64) uint32_t credits = 0;            // from here on the sender's
    uint32_t sent = 0;
    uint32_t queued = 0;      ///< `sent` after the last message that went through the queue
    uint32_t seen_taken = 0;  ///< `taken` as last looked at, which is seldom
    std::unique_ptr<typename detail::Queue<Envelope>::Token> token;

    uint32_t used() const { return sent - seen_taken; }
    void look() { seen_taken = taken.load(std::memory_order_acquire); }
    /// Nothing of this sender's is in the queue.
    bool queue_is_clear() {
      if (static_cast<int32_t>(queued - seen_taken) > 0) {
        look();
      } else if (used() == 0) {
        queued = sent;  // keeps the difference small while counts go round
      }
      return static_cast<int32_t>(queued - seen_taken) <= 0;
    }
  };
  enum class FrontState : uint32_t { empty, writing, full };
  struct alignas(64) Front {
    std::atomic<FrontState> state{FrontState::empty};
    Envelope envelope;
  };

  /// A sender.  Publishes as Waker asks: with a sequentially consistent read-modify-write.
  bool try_front(const Envelope& envelope) {
    FrontState expected = FrontState::empty;
    if (front_.state.load(std::memory_order_relaxed) != expected ||
        !front_.state.compare_exchange_strong(
            expected, FrontState::writing, std::memory_order_acquire, std::memory_order_relaxed)) {
      return false;
    }
    front_.envelope = envelope;
    front_.state.exchange(FrontState::full, std::memory_order_seq_cst);
    return true;
  }
  bool take_front(Envelope* out) {
    if (front_.state.load(std::memory_order_acquire) != FrontState::full) {
      return false;
    }
    *out = front_.envelope;
    front_.state.store(FrontState::empty, std::memory_order_release);
    return true;
  }
  void give_back(uint32_t sender, uint32_t count) {
    auto& taken = senders_[sender].taken;
    taken.store(taken.load(std::memory_order_relaxed) + count, std::memory_order_release);
  }

  void close(uint32_t sender) {
    std::lock_guard lock(mutex_);
    credits_left_ += senders_[sender].credits;
    leaving_.push_back(sender);
  }

  std::mutex mutex_;  // open and close only
  size_t credits_left_;
  std::atomic<Waker*> waker_;
  Front front_;
  /// Messages pushed into the queue and not yet taken; may run ahead below zero for a moment, as a
  /// message can be taken before its sender has counted it.
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
    if (sender.used() >= sender.credits) {
      sender.look();
      if (sender.used() >= sender.credits) {
        ++rejected_;
        return false;
      }
    }
    if (sender.queue_is_clear() && mailbox_->try_front({message, sender_})) {
      ++sender.sent;
    } else {
      if (!mailbox_->queue_.try_push(*sender.token, {message, sender_})) {
        ++rejected_;
        return false;
      }
      sender.queued = ++sender.sent;
      mailbox_->published_.fetch_add(1, std::memory_order_seq_cst);
    }
    if (Waker* waker = mailbox_->waker_.load(std::memory_order_acquire); waker != nullptr) {
      waker->notify();
    }
    return true;
  }
  uint64_t rejected() const { return rejected_; }
  size_t credits_left() const {
    auto& sender = mailbox_->senders_[sender_];
    sender.look();
    return sender.credits - sender.used();
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
    senders_[sender].look();
    const bool empty = senders_[sender].used() == 0;
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
