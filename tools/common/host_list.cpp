#include "tools/common/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>

#include "runtime/base/ip_address.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t hosts_max = 4096;

/// Cut at commas that are in no brackets.
std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts{""};
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::optional<unsigned> number(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

/// "node[08-10]x" as node08x, node09x, node10x, and "[fd00::1]" as fd00::1; nothing for what cannot
/// be read.
std::optional<std::vector<std::string>> expand(const std::string& text) {
  if (const std::string_view bare = without_brackets(text);
      bare.size() != text.size() && bare.find(':') != std::string_view::npos) {
    return std::vector{std::string(bare)};
  }
  const size_t open = text.find('[');
  if (open == std::string::npos) {
    return text.find(']') == std::string::npos ? std::optional(std::vector{text}) : std::nullopt;
  }
  const size_t close = text.find(']', open);
  if (close == std::string::npos) {
    return std::nullopt;
  }
  const auto tails = expand(text.substr(close + 1));
  if (!tails) {
    return std::nullopt;
  }
  std::vector<std::string> out;
  for (const std::string& part : parts_of(text.substr(open + 1, close - open - 1))) {
    const std::string first = part.substr(0, part.find('-'));
    const size_t dash = part.find('-');
    const auto low = number(first);
    const auto high = dash == std::string::npos ? low : number(part.substr(dash + 1));
    if (!low || !high || *high < *low || *high - *low >= hosts_max) {
      return std::nullopt;
    }
    for (unsigned n = *low; n <= *high; ++n) {
      for (const std::string& tail : *tails) {
        out.push_back(fmt::format("{}{:0{}}{}", text.substr(0, open), n, first.size(), tail));
        if (out.size() > hosts_max) {
          return std::nullopt;
        }
      }
    }
  }
  return out;
}

/// What a remote shell leaves as it is.
bool is_name(std::string_view word) {
  return !word.empty() && !word.starts_with('-') &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 ||
                  std::string_view("-_.:@%").find(static_cast<char>(c)) != std::string_view::npos;
         });
}

/// One part of a list, which may stand for many.
Result<void> add_hosts(const std::string& part, const std::string& source,
                       std::vector<NamedHost>& hosts) {
  const size_t equals = part.find('=');
  const auto names = expand(part.substr(0, equals));
  const auto addresses = equals == std::string::npos ? names : expand(part.substr(equals + 1));
  if (!names || !addresses || names->size() != addresses->size()) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: '{}' cannot be read; write NAME, NAME=ADDRESS or node[01-08,12], "
                            "at most {} hosts",
                            source, part, hosts_max));
  }
  for (size_t i = 0; i < names->size(); ++i) {
    if (!is_name((*names)[i]) || !is_name((*addresses)[i])) {
      return fail(Errc::invalid_argument,
                  fmt::format("{}: '{}' is not of the form NAME or NAME=ADDRESS", source, part));
    }
    hosts.push_back({(*names)[i], (*addresses)[i]});
  }
  return {};
}

Result<std::vector<NamedHost>> counted(std::vector<NamedHost> hosts, const std::string& source,
                                       size_t least) {
  if (hosts.size() < least || hosts.size() > hosts_max) {
    return fail(Errc::invalid_argument, fmt::format("{}: give {} to {} hosts, not {}", source,
                                                    least, hosts_max, hosts.size()));
  }
  return hosts;
}

}  // namespace

Result<std::vector<NamedHost>> parse_hosts(const std::string& text, const std::string& source,
                                           size_t least) {
  std::vector<NamedHost> hosts;
  if (text.empty()) {
    return fail(Errc::invalid_argument,
                fmt::format("{} is empty: name {} hosts or more", source, least));
  }
  for (const std::string& part : parts_of(text)) {
    if (auto added = add_hosts(part, source, hosts); !added) {
      return added.error();
    }
  }
  std::set<std::string> seen;
  for (const NamedHost& host : hosts) {
    if (!seen.insert(host.name).second) {
      return fail(Errc::invalid_argument, fmt::format("{}: {} is there twice", source, host.name));
    }
  }
  return counted(std::move(hosts), source, least);
}

Result<std::vector<NamedHost>> read_hosts(const std::string& file, size_t least) {
  std::ifstream in(file);
  if (!in) {
    return fail(Errc::system, fmt::format("cannot read the hosts in {}", file), errno);
  }
  std::vector<NamedHost> hosts;
  std::set<std::string> seen;
  size_t number_of_line = 0;
  for (std::string line; std::getline(in, line);) {
    ++number_of_line;
    line = line.substr(0, line.find('#'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) {
      continue;
    }
    std::string word = line.substr(begin, line.find_first_of(" \t\r", begin) - begin);
    const size_t colon = word.rfind(':');
    if (colon != std::string::npos && number(word.substr(colon + 1)) &&
        (colon == word.find(':') || word[colon - 1] == ']')) {
      word.resize(colon);  // MPICH's number of ranks
    }
    std::vector<NamedHost> some;
    if (auto added = add_hosts(word, fmt::format("{}:{}", file, number_of_line), some); !added) {
      return added.error();
    }
    for (NamedHost& host : some) {
      if (seen.insert(host.name).second) {
        hosts.push_back(std::move(host));
      }
    }
  }
  return counted(std::move(hosts), file, least);
}

Result<std::vector<NamedHost>> job_hosts(const GetEnv& get, size_t least) {
  for (const char* variable : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const auto list = get(variable)) {
      return parse_hosts(*list, variable, least);
    }
  }
  for (const char* variable : {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"}) {
    if (const auto file = get(variable)) {
      return read_hosts(*file, least);
    }
  }
  return fail(Errc::invalid_argument,
              "--hosts job: this is no job of Slurm, PBS or LSF (none of SLURM_JOB_NODELIST, "
              "PBS_NODEFILE and LSB_DJOB_HOSTFILE is set)");
}

Result<std::vector<NamedHost>> named_hosts(const std::string& list, const std::string& file,
                                           const GetEnv& get, size_t least) {
  if (!file.empty()) {
    return read_hosts(file, least);
  }
  return list == "job" ? job_hosts(get, least) : parse_hosts(list, "--hosts", least);
}

}  // namespace nccl_ha::tools
