#include "runtime/telemetry/counters.h"

#include <array>

namespace nccl_ha {
namespace {

#define NHA_SCOPE(scope, Struct, help) constexpr std::array scope##_infos = {
#define NHA_COUNTER(kind, name, unit, help) CounterInfo{#name, unit, help, CounterKind::kind},
#define NHA_SCOPE_END(scope) \
  }                          \
  ;
#include "runtime/telemetry/counters.def"
#undef NHA_SCOPE
#undef NHA_COUNTER
#undef NHA_SCOPE_END

#define NHA_SCOPE(scope, Struct, help) \
  static_assert(sizeof(Struct) == sizeof(Counter) * scope##_infos.size());
#define NHA_COUNTER(kind, name, unit, help)
#define NHA_SCOPE_END(scope)
#include "runtime/telemetry/counters.def"
#undef NHA_SCOPE
#undef NHA_SCOPE_END

#define NHA_SCOPE(scope, Struct, help) CounterScopeInfo{#scope, help, scope##_infos},
#define NHA_SCOPE_END(scope)
constexpr std::array scope_infos = {
#include "runtime/telemetry/counters.def"
};
#undef NHA_SCOPE
#undef NHA_COUNTER
#undef NHA_SCOPE_END

}  // namespace

std::span<const CounterScopeInfo> counter_scopes() { return scope_infos; }

}  // namespace nccl_ha
