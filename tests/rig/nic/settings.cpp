#include "tests/rig/nic/settings.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace nccl_ha::emulated {
namespace {

constexpr std::pair<const char*, uint64_t Settings::*> numbers[] = {
    {"host", &Settings::host},
    {"devices", &Settings::devices},
    {"ports", &Settings::ports},
    {"seed", &Settings::seed},
    {"foreign_gids", &Settings::foreign_gids},
    {"ece", &Settings::ece},
    {"max_mr", &Settings::max_mr},
    {"max_qp", &Settings::max_qp},
    {"max_cqe", &Settings::max_cqe},
    {"max_cq", &Settings::max_cq},
    {"max_qp_wr", &Settings::max_qp_wr},
    {"max_inline", &Settings::max_inline},
    {"mtu", &Settings::mtu},
    {"jitter", &Settings::jitter},
    {"hang.answer", &Settings::hang_answer},
    {"packet", &Settings::packet},
    {"window", &Settings::window},
    {"retry_factor", &Settings::retry_factor},
    {"loss", &Settings::loss},
    {"network_mtu", &Settings::network_mtu},
    {"tear", &Settings::tear},
};
constexpr std::pair<const char*, bool Settings::*> switches[] = {
    {"ib", &Settings::infiniband},
    {"grh", &Settings::grh},
    {"subnets", &Settings::subnets},
    {"vf", &Settings::vf},
    {"apart", &Settings::apart},
    {"dmabuf", &Settings::dmabuf},
    {"unknown_netdev", &Settings::unknown_netdev},
    {"foreign_shown", &Settings::foreign_shown},
    {"sub_functions", &Settings::sub_functions},
    {"xdr", &Settings::xdr},
    {"loopback_when_cut", &Settings::loopback_when_cut},
    {"any_order", &Settings::any_order},
};
constexpr std::pair<const char*, Duration Settings::*> durations[] = {
    {"cost.create_qp", &Settings::create_qp},
    {"cost.modify_qp", &Settings::modify_qp},
    {"cost.destroy_qp", &Settings::destroy_qp},
    {"cost.create_cq", &Settings::create_cq},
    {"cost.create_ah", &Settings::create_ah},
    {"cost.reg_mr", &Settings::reg_mr},
    {"cost.reg_page", &Settings::reg_page},
    {"cost.dereg_mr", &Settings::dereg_mr},
    {"cost.query", &Settings::query},
    {"hang.verb", &Settings::hang_verb},
    {"internal.writes", &Settings::internal_writes},
    {"internal.reset", &Settings::internal_reset},
    {"removal", &Settings::removal},
    {"removal.rest", &Settings::removal_rest},
    {"delay", &Settings::delay},
    {"late", &Settings::late},
    {"gpu_late", &Settings::gpu_late},
};
/// Switches with a word for on and one for off.
struct Choice {
  std::string_view name;
  std::string_view on;
  std::string_view off;
  bool Settings::*field;
};
constexpr Choice choices[] = {
    {"transport", "iwarp", "ib", &Settings::iwarp},
    {"link", "unspecified", "own", &Settings::no_link_layer},
    {"kernel", "old", "new", &Settings::old_kernel},
    {"driver", "bnxt_re", "mlx5", &Settings::driver_answers},
};
constexpr std::pair<std::string_view, uint32_t> operations[] = {
    {"send", op_send}, {"read", op_read}, {"atomic", op_atomic}, {"write", op_write}};

[[noreturn]] void refuse(std::string_view what) {
  std::fprintf(stderr, "emulated NIC: NHA_NIC: cannot use '%.*s' (tests/rig/nic/README.md)\n",
               static_cast<int>(what.size()), what.data());
  std::abort();
}

uint64_t number(std::string_view item, std::string_view value, std::string_view* rest) {
  const std::string text(value);
  char* end = nullptr;
  const uint64_t result = std::strtoull(text.c_str(), &end, 10);
  if (end == text.c_str()) {
    refuse(item);
  }
  *rest = value.substr(static_cast<size_t>(end - text.c_str()));
  return result;
}

Duration duration(std::string_view item, std::string_view value) {
  std::string_view unit;
  const uint64_t count = number(item, value, &unit);
  constexpr std::pair<std::string_view, uint64_t> units[] = {
      {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
  for (const auto& [name, nanoseconds] : units) {
    if (unit == name) {
      return Duration(count * nanoseconds);
    }
  }
  refuse(item);
}

uint32_t forbidden(std::string_view item, std::string_view value) {
  uint32_t bits = 0;
  while (!value.empty()) {
    const size_t plus = value.find('+');
    uint32_t bit = 0;
    for (const auto& [name, operation] : operations) {
      bit = value.substr(0, plus) == name ? operation : bit;
    }
    if (bit == 0) {
      refuse(item);
    }
    bits |= bit;
    value = plus == std::string_view::npos ? std::string_view{} : value.substr(plus + 1);
  }
  return bits;
}

void apply(Settings& settings, std::string_view item) {
  const size_t equals = item.find('=');
  const std::string_view name = item.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view("1") : item.substr(equals + 1);
  if (name == "state") {
    settings.state = value;
    return;
  }
  if (name == "forbid") {
    settings.forbid = forbidden(item, value);
    return;
  }
  for (const Choice& choice : choices) {
    if (name == choice.name) {
      settings.*choice.field = value == choice.on;
      return value == choice.on || value == choice.off ? void() : refuse(item);
    }
  }
  std::string_view rest;
  for (const auto& [known, field] : numbers) {
    if (name == known) {
      settings.*field = number(item, value, &rest);
      return rest.empty() ? void() : refuse(item);
    }
  }
  for (const auto& [known, field] : switches) {
    if (name == known) {
      settings.*field = number(item, value, &rest) != 0;
      return rest.empty() ? void() : refuse(item);
    }
  }
  for (const auto& [known, field] : durations) {
    if (name == known) {
      settings.*field = duration(item, value);
      return;
    }
  }
  refuse(item);
}

}  // namespace

Settings Settings::parse(const char* text) {
  Settings settings;
  std::string_view left = text == nullptr ? "" : text;
  while (!left.empty()) {
    const size_t comma = left.find(',');
    if (comma != 0) {
      apply(settings, left.substr(0, comma));
    }
    left = comma == std::string_view::npos ? std::string_view{} : left.substr(comma + 1);
  }
  if (settings.devices == 0 || settings.devices > 8 || settings.ports == 0 || settings.ports > 4 ||
      settings.host > 253 || settings.packet == 0 || settings.packet > 65536 ||
      settings.window == 0 || settings.tear == 0 || settings.mtu < 256 || settings.mtu > 4096) {
    refuse("a number out of range");
  }
  return settings;
}

}  // namespace nccl_ha::emulated
