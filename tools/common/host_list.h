// Hosts that a user names, or a scheduler.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/common/environment.h"

namespace nccl_ha::tools {

/// A host as the remote shell knows it, and the address at which the others reach it.
struct NamedHost {
  std::string name;
  std::string address;
};

/// Fewer have no network between them.
inline constexpr size_t hosts_of_a_job = 2;

/// Parses "a,b=10.0.0.2,node[01-08,12]": NAME or NAME=ADDRESS, separated by commas, with ranges of
/// numbers in brackets.  Fewer than `least` are an error, here and below.  `source` is named in
/// errors.  Pure.
Result<std::vector<NamedHost>> parse_hosts(const std::string& text,
                                           const std::string& source = "--hosts",
                                           size_t least = hosts_of_a_job);

/// A host's name, or NAME=ADDRESS, on each line: what mpirun takes as a hostfile, with what follows
/// the name (slots=4, :4) left out; # begins a comment, and a host may be there several times.
Result<std::vector<NamedHost>> read_hosts(const std::string& file, size_t least = hosts_of_a_job);

/// The hosts of the job that this process is part of, by Slurm, PBS or LSF.
Result<std::vector<NamedHost>> job_hosts(const GetEnv& get, size_t least = hosts_of_a_job);

/// By the options of a command: `list` "job" is job_hosts().  At most one of both is given.
Result<std::vector<NamedHost>> named_hosts(const std::string& list, const std::string& file,
                                           const GetEnv& get, size_t least = hosts_of_a_job);

}  // namespace nccl_ha::tools
