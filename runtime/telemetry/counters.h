// Counters with one writer that any thread, and any process that may read the file, can read.
//
// counters.def names them; each scope of it is a struct here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nccl_ha {

class Counter {
 public:
  /// The owning thread only; no locked instruction.  Shorter than a call of it.
  [[gnu::always_inline]] void add(uint64_t amount = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  /// Of what is counted as the most so far.
  void raise_to(uint64_t value) {
    if (value > get()) {
      set(value);
    }
  }
  Counter& operator++() {
    add();
    return *this;
  }
  Counter& operator+=(uint64_t amount) {
    add(amount);
    return *this;
  }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }
  operator uint64_t() const { return get(); }

 private:
  std::atomic<uint64_t> value_{0};
};
static_assert(sizeof(Counter) == 8 && std::atomic<uint64_t>::is_always_lock_free);

/// What a value means over time.
enum class CounterKind : uint8_t { sum, level, most };

enum class CounterScope : uint8_t {
#define NHA_SCOPE(scope, Struct, help) scope,
#define NHA_COUNTER(kind, name, unit, help)
#define NHA_SCOPE_END(scope)
#include "runtime/telemetry/counters.def"
#undef NHA_SCOPE
#undef NHA_COUNTER
#undef NHA_SCOPE_END
};

#define NHA_SCOPE(name, Struct, help) \
  struct Struct {                     \
    static constexpr CounterScope scope = CounterScope::name;
#define NHA_COUNTER(kind, name, unit, help) Counter name;
#define NHA_SCOPE_END(scope) \
  }                          \
  ;
#include "runtime/telemetry/counters.def"
#undef NHA_SCOPE
#undef NHA_COUNTER
#undef NHA_SCOPE_END

struct CounterInfo {
  const char* name;
  const char* unit;
  const char* help;
  CounterKind kind;
};
/// Names for readers: of a scope, with its counters in their order in the struct.
struct CounterScopeInfo {
  const char* name;
  const char* help;
  std::span<const CounterInfo> counters;
};
/// In the order of CounterScope.
std::span<const CounterScopeInfo> counter_scopes();

}  // namespace nccl_ha
