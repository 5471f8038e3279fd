#include "tools/trace/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "runtime/telemetry/trace_dump.h"

namespace nccl_ha::tools {
namespace {

// A bundle: magic, number of dumps, and of each where it begins and how long it is; all numbers in
// the byte order of the host, each dump at a multiple of 64.
constexpr std::array<char, 8> bundle_magic = {'n', 'h', 'a', 't', 'r', 'c', 's', '\0'};
constexpr size_t bundle_head = 16;
constexpr size_t bundle_entry = 16;
/// More than one job has processes.
constexpr uint64_t bundle_dumps_max = 65536;

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

uint64_t word_at(std::span<const std::byte> bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

std::vector<std::byte> as_vector(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::vector<std::byte> make_bundle(const std::vector<std::vector<std::byte>>& dumps) {
  std::vector<std::byte> out(bundle_head + dumps.size() * bundle_entry);
  const auto put = [&out](size_t at, uint64_t word) {
    std::memcpy(out.data() + at, &word, sizeof word);
  };
  std::memcpy(out.data(), bundle_magic.data(), bundle_magic.size());
  put(8, dumps.size());
  for (size_t i = 0; i < dumps.size(); ++i) {
    out.resize((out.size() + 63) / 64 * 64);
    put(bundle_head + i * bundle_entry, out.size());
    put(bundle_head + i * bundle_entry + 8, dumps[i].size());
    out.insert(out.end(), dumps[i].begin(), dumps[i].end());
  }
  return out;
}

Result<std::vector<std::span<const std::byte>>> parse_bundle(std::span<const std::byte> bytes) {
  if (bytes.size() < bundle_head ||
      std::memcmp(bytes.data(), bundle_magic.data(), bundle_magic.size()) != 0) {
    return std::vector{bytes};  // one dump, or nothing of ours, which its reader finds out
  }
  const uint64_t count = word_at(bytes, 8);
  if (count > bundle_dumps_max || count * bundle_entry > bytes.size() - bundle_head) {
    return fail(Errc::invalid_argument, "the file is damaged: it names dumps that are not there");
  }
  std::vector<std::span<const std::byte>> dumps;
  uint64_t end = 0;  // of the one before: each byte belongs to one dump at most
  for (size_t i = 0; i < count; ++i) {
    const uint64_t begin = word_at(bytes, bundle_head + i * bundle_entry);
    const uint64_t size = word_at(bytes, bundle_head + i * bundle_entry + 8);
    if (begin % 64 != 0 || begin > bytes.size()) {
      return fail(Errc::invalid_argument, "the file is damaged: a dump lies outside of it");
    }
    if (begin < end) {
      return fail(Errc::invalid_argument, "the file is damaged: its dumps lie over each other");
    }
    dumps.push_back(bytes.subspan(begin, std::min<uint64_t>(size, bytes.size() - begin)));
    end = begin + dumps.back().size();
  }
  return dumps;
}

Result<std::vector<std::vector<std::byte>>> dumps_of(const std::string& name,
                                                     const std::string& counters_dir,
                                                     std::string_view reason) {
  std::vector<std::vector<std::byte>> dumps;
  std::vector<std::string> files;
  if (is_number(name)) {
    auto found =
        read_counters_of(static_cast<uint32_t>(std::stoul(name)), counters_dir, EventsWanted::no);
    if (!found) {
      return found.error();
    }
    for (const ProcessCounterFile& file : *found) {
      files.push_back(file.path);
    }
  } else if (name.ends_with(".counters")) {
    files.push_back(name);
  }
  for (const std::string& file : files) {
    auto copy = copy_counter_file(file, reason, EventsWanted::yes);
    if (!copy) {
      return copy.error();
    }
    dumps.push_back(std::move(*copy));
  }
  if (!files.empty()) {
    return dumps;
  }
  auto bytes = TraceBytes::load(name);
  if (!bytes) {
    return bytes.error();
  }
  auto parts = parse_bundle(bytes->bytes());
  if (!parts) {
    return fail(parts.error().code, fmt::format("{}: {}", name, parts.error().what));
  }
  for (const auto& part : *parts) {
    dumps.push_back(as_vector(part));
  }
  return dumps;
}

Result<TraceSource> read_dump(const std::string& name, std::span<const std::byte> bytes) {
  TraceSource source;
  source.name = name;
  auto snapshot = salvage_counters(bytes, source.damages);
  if (!snapshot) {
    return fail(snapshot.error().code, fmt::format("{}: {}", name, snapshot.error().what),
                snapshot.error().sys);
  }
  source.snapshot = std::move(*snapshot);
  return source;
}

Result<std::vector<TraceSource>> read_dumps(const std::string& name,
                                            const std::vector<std::vector<std::byte>>& dumps) {
  std::vector<TraceSource> all;
  for (const auto& dump : dumps) {
    // Atomics and tables are read in place.
    const auto aligned = std::make_unique<std::byte[]>(dump.size() + 64);
    auto* begin = aligned.get();
    begin += (64 - reinterpret_cast<uintptr_t>(begin) % 64) % 64;
    std::copy(dump.begin(), dump.end(), begin);
    auto source =
        read_dump(dumps.size() == 1 ? name : fmt::format("{}[{}]", name, &dump - dumps.data()),
                  {begin, dump.size()});
    if (!source) {
      return source.error();
    }
    all.push_back(std::move(*source));
  }
  return all;
}

Result<std::vector<TraceSource>> read_traces(const std::vector<std::string>& names,
                                             const std::string& counters_dir) {
  std::vector<TraceSource> all;
  for (const std::string& name : names) {
    auto dumps = dumps_of(name, counters_dir, "read by nccl-ha trace");
    if (!dumps) {
      return dumps.error();
    }
    auto sources = read_dumps(name, *dumps);
    if (!sources) {
      return sources.error();
    }
    std::move(sources->begin(), sources->end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace nccl_ha::tools
