// Where traces come from: processes, dumps, and bundles of dumps.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

/// Each of `names` is the number of a process (its counters in `counters_dir`), or a file: a dump,
/// what a process left, or several dumps in one (write_bundle).
Result<std::vector<TraceSource>> read_traces(const std::vector<std::string>& names,
                                             const std::string& counters_dir);

/// What all dumps of a name say.
Result<std::vector<TraceSource>> read_dumps(const std::string& name,
                                            const std::vector<std::vector<std::byte>>& dumps);

/// What one dump's bytes say, as far as it can be read; `bytes` is aligned to 64.
Result<TraceSource> read_dump(const std::string& name, std::span<const std::byte> bytes);

/// The bytes of what `name` means, as dumps.
Result<std::vector<std::vector<std::byte>>> dumps_of(const std::string& name,
                                                     const std::string& counters_dir,
                                                     std::string_view reason);

/// Several dumps as one file.
std::vector<std::byte> make_bundle(const std::vector<std::vector<std::byte>>& dumps);
/// Where the dumps in it are; what lies outside of it is an error.
Result<std::vector<std::span<const std::byte>>> parse_bundle(std::span<const std::byte> bytes);

}  // namespace nccl_ha::tools
