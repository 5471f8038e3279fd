#include "tools/common/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "runtime/base/ip_address.h"
#include "tools/common/host_list.h"

namespace nccl_ha::tools {
namespace {

/// Ports that launchers do not tell are derived from the job number, above the usual services and
/// below Linux's ephemeral range (which starts at 32768).
constexpr uint32_t port_base = 20000;
constexpr uint32_t port_span = 12000;

Result<uint32_t> number(const std::string& name, const std::string& text, uint32_t max) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) {
    return fail(Errc::invalid_argument,
                fmt::format("{}={} is not a number from 0 to {}", name, text, max));
  }
  return value;
}

/// Reads a number into `out` when the variable is there; tells whether it was.
Result<bool> read_number(const GetEnv& get, const char* name, uint32_t& out,
                         uint32_t max = 1000000) {
  const auto text = get(name);
  if (!text) {
    return false;
  }
  auto value = number(name, *text, max);
  if (!value) {
    return value.error();
  }
  out = *value;
  return true;
}

struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// In the order of trust: torchrun and mpirun may themselves run under Slurm, and their ranks are
// then the ones that count.  SLURM_NTASKS is no sign of a launch: a batch script sees it as well.
constexpr Names launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPI (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
    {"PMIx", "PMIX_RANK", "WORLD_SIZE", nullptr, nullptr},
};

/// The launcher's numbers, without an address.
Result<std::optional<LaunchedRank>> read_numbers(const GetEnv& get) {
  for (const Names& names : launchers) {
    if (!get(names.rank) || !get(names.size)) {
      continue;
    }
    LaunchedRank place;
    place.launcher = names.launcher;
    for (const auto& [name, out] :
         {std::pair(names.rank, &place.rank), std::pair(names.size, &place.world_size),
          std::pair(names.local_rank, &place.local_rank),
          std::pair(names.local_size, &place.local_size)}) {
      if (name == nullptr) {
        continue;
      }
      if (auto found = read_number(get, name, *out); !found) {
        return found.error();
      }
    }
    if (place.world_size <= 1) {
      continue;  // a lone interactive Slurm shell, say: no launch
    }
    if (place.rank >= place.world_size) {
      return fail(Errc::invalid_argument, fmt::format("{}={} does not fit {}={}", names.rank,
                                                      place.rank, names.size, place.world_size));
    }
    return std::optional(place);
  }
  return std::optional<LaunchedRank>();
}

/// A launcher's rank, of one too.
bool is_launched(const GetEnv& get) {
  return std::any_of(std::begin(launchers), std::end(launchers),
                     [&](const Names& names) { return get(names.rank).has_value(); });
}

Result<void> take_rendezvous(LaunchedRank& place, const std::string& text) {
  auto point = parse_host_port(text, 65534);
  if (!point) {
    return fail(Errc::invalid_argument, "--rendezvous " + point.error().what);
  }
  place.host = std::move(point->host);
  place.port = point->port;
  return {};
}

/// A port all ranks of a job compute alike.
uint16_t job_port(const GetEnv& get) {
  uint64_t hash = 1469598103934665603ULL;  // FNV-1a
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid",
                           "PMIX_NAMESPACE", "PMI_ID_JOB", "HYDRA_JOBID"}) {
    for (const char c : get(name).value_or("")) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    }
  }
  return static_cast<uint16_t>(port_base + hash % port_span);
}

/// Open MPI 4 tells its processes where mpirun is: "JOB;tcp://ADDRESS,ADDRESS:PORT", or
/// "JOB;tcp6://[ADDRESS,ADDRESS]:PORT".
std::optional<std::string> host_of_mpirun(const GetEnv& get) {
  const std::string uri = get("OMPI_MCA_orte_hnp_uri").value_or("");
  for (const auto& [scheme, ends] :
       {std::pair<std::string_view, const char*>{";tcp://", ",:;"}, {";tcp6://[", ",]"}}) {
    const size_t at = uri.find(scheme);
    const size_t from = at + scheme.size();
    const size_t end = at == std::string::npos ? at : uri.find_first_of(ends, from);
    if (end != std::string::npos && end != from) {
      return uri.substr(from, end - from);
    }
  }
  return std::nullopt;
}

/// Rank 0's, as far as it is told: ranks are placed from the first host of a job on, and outside of
/// one mpirun begins where it runs itself.
std::optional<std::string> first_host(const LaunchedRank& place, const GetEnv& get) {
  if (const auto list = get("SLURM_STEP_NODELIST"); list && place.launcher == "Slurm") {
    return first_slurm_host(*list);
  }
  if (const auto hosts = job_hosts(get); hosts && !hosts->empty()) {
    return hosts->front().address;
  }
  return host_of_mpirun(get);
}

Result<void> find_address(LaunchedRank& place, const GetEnv& get) {
  place.port = job_port(get);
  uint32_t port = 0;
  auto told = read_number(get, "MASTER_PORT", port, 65534);
  if (!told) {
    return told.error();
  }
  if (*told) {
    // torchrun's own store may sit on MASTER_PORT itself; 17 up is free of its neighbours.
    place.port = static_cast<uint16_t>(port > 65500 ? port - 17 : port + 17);
  }
  if (const auto host = get("MASTER_ADDR")) {
    place.host = without_brackets(*host);
    return {};
  }
  if (place.local_size == place.world_size) {
    place.host = "127.0.0.1";
    return {};
  }
  if (const auto host = first_host(place, get)) {
    place.host = *host;
    return {};
  }
  return fail(Errc::invalid_argument,
              fmt::format("{} started this rank but names no address of rank 0: pass --rendezvous "
                          "HOST:PORT or set MASTER_ADDR and MASTER_PORT",
                          place.launcher));
}

}  // namespace

GetEnv process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string first_slurm_host(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) {
    return list.substr(0, comma);
  }
  const size_t end = list.find_first_of(",-]", bracket + 1);
  if (end == std::string::npos) {
    return list.substr(0, bracket);
  }
  const size_t close = list.find(']', end);
  std::string host = list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
  if (close != std::string::npos) {
    const size_t next = list.find(',', close);
    host += list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
  }
  return host;
}

Result<std::optional<LaunchedRank>> detect_launcher(const GetEnv& get,
                                                    const std::string& rendezvous) {
  auto found = read_numbers(get);
  if (found && !*found && !rendezvous.empty() && !is_launched(get)) {
    return fail(Errc::invalid_argument,
                fmt::format("--rendezvous {}: no launcher (srun, mpirun, torchrun) started this "
                            "process, so that there are no other ranks to meet",
                            rendezvous));
  }
  if (!found || !*found) {
    return found;
  }
  LaunchedRank place = **found;
  const Result<void> address =
      rendezvous.empty() ? find_address(place, get) : take_rendezvous(place, rendezvous);
  if (!address) {
    return address.error();
  }
  return std::optional(place);
}

}  // namespace nccl_ha::tools
