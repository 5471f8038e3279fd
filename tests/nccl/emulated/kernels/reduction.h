// Arithmetic of the reductions, element by element.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <device.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "tests/nccl/emulated/kernels/block.h"

namespace nccl_ha::emulated {

/// The type in which a type is computed.
template <class T>
struct Wide {
  static T up(T value) { return value; }
  static T down(T value) { return value; }
};
template <>
struct Wide<__half> {
  static float up(__half value) { return __half2float(value); }
  static __half down(float value) { return __float2half(value); }
};
template <>
struct Wide<__nv_bfloat16> {
  static float up(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __nv_bfloat16 down(float value) { return __float2bfloat16(value); }
};

template <class T>
class Reduction {
 public:
  Reduction(int kind, uint64_t argument) : kind_(kind), argument_(argument) {
    std::memcpy(static_cast<void*>(&scalar_), &argument, sizeof scalar_);
  }

  bool scales() const { return kind_ == ncclDevPreMulSum; }

  /// What becomes of a value of the input.
  T before(T value) const { return scales() ? W::down(W::up(value) * W::up(scalar_)) : value; }

  T both(T a, T b) const {
    switch (kind_) {
      case ncclDevProd:
        return narrow(W::up(a) * W::up(b));
      case ncclDevMinMax:
        if constexpr (std::is_integral_v<T>) {
          const T mask = static_cast<T>(argument_);
          return static_cast<T>(a ^ mask) < static_cast<T>(b ^ mask) ? a : b;
        } else {
          const bool least = (argument_ & 1) == 0;
          return W::down(least ? std::min(W::up(a), W::up(b)) : std::max(W::up(a), W::up(b)));
        }
      default:
        return narrow(W::up(a) + W::up(b));
    }
  }

  /// What becomes of the result: of an average of integers the division.
  T after(T value) const {
    if (kind_ != ncclDevSumPostDiv) {
      return value;
    }
    if constexpr (std::is_integral_v<T>) {
      constexpr T sign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
      const uint64_t divisor = argument_ >> 1;
      const bool negative = (argument_ & 1) != 0 && (value & sign) != 0;
      const T magnitude = negative ? static_cast<T>(-value) : value;
      const T quotient = static_cast<T>(magnitude / divisor);
      return negative ? static_cast<T>(-quotient) : quotient;
    } else {
      give_up("an average of floating-point values by division");
    }
  }

 private:
  using W = Wide<T>;
  template <class Value>
  static T narrow(Value value) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(value);
    } else {
      return W::down(value);
    }
  }

  const int kind_;
  const uint64_t argument_;
  T scalar_{};
};

/// after(both(before(mine), theirs)), where mine or theirs may be missing, into up to two places.
template <class T>
void combine(const Reduction<T>& reduction, bool from_input, const T* mine, const T* theirs,
             bool last, T* to_peer, T* to_user, size_t count) {
  if (mine == nullptr || theirs == nullptr) {
    const T* from = mine != nullptr ? mine : theirs;
    const bool scale = mine != nullptr && from_input && reduction.scales();
    for (T* to : {to_peer, to_user}) {
      if (to == nullptr) {
        continue;
      }
      if (scale) {
        std::transform(from, from + count, to, [&](T value) { return reduction.before(value); });
      } else if (to != from) {
        std::memmove(static_cast<void*>(to), from, count * sizeof(T));
      }
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    T value = reduction.both(from_input ? reduction.before(mine[i]) : mine[i], theirs[i]);
    if (last) {
      value = reduction.after(value);
    }
    if (to_peer != nullptr) {
      to_peer[i] = value;
    }
    if (to_user != nullptr) {
      to_user[i] = value;
    }
  }
}

/// As combine(), with what any number of peers sent, into the slots for any number of peers; one
/// result at least is wanted.
template <class T>
void combine_all(const Reduction<T>& reduction, bool from_input, const T* mine,
                 std::span<const T* const> theirs, bool last, std::span<T* const> to_peers,
                 T* to_user, size_t count) {
  T* const first = to_peers.empty() ? nullptr : to_peers.front();
  if (theirs.size() < 2) {
    combine<T>(reduction, from_input, mine, theirs.empty() ? nullptr : theirs.front(), last, first,
               to_user, count);
  }
  T* const sum = first != nullptr ? first : to_user;
  for (size_t i = 0; theirs.size() >= 2 && i < theirs.size(); ++i) {
    const bool end = i + 1 == theirs.size();
    combine<T>(reduction, i == 0 && from_input, i == 0 ? mine : sum, theirs[i], end && last, sum,
               end && to_user != sum ? to_user : nullptr, count);
  }
  for (size_t i = 1; i < to_peers.size(); ++i) {
    std::memcpy(static_cast<void*>(to_peers[i]), first, count * sizeof(T));
  }
}

}  // namespace nccl_ha::emulated
