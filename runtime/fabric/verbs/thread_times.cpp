#include "runtime/fabric/verbs/thread_times.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/base/own_fd.h"

namespace nccl_ha::fabric::verbs {
namespace {

using ProcText = std::array<char, 512>;

std::string_view read_proc(int fd, ProcText& into) {
  const ssize_t got = fd < 0 ? -1 : pread(fd, into.data(), into.size(), 0);
  return {into.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

}  // namespace

std::optional<ThreadTimes> parse_thread_times(std::string_view schedstat, std::string_view stat) {
  int64_t ran = 0;
  int64_t waited = 0;
  const char* const end = schedstat.data() + schedstat.size();
  const auto first = std::from_chars(schedstat.data(), end, ran);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != ' ') {
    return std::nullopt;
  }
  const auto second = std::from_chars(first.ptr + 1, end, waited);
  // Behind the name, which may contain anything.
  const size_t name_end = stat.rfind(')');
  if (second.ec != std::errc{} || name_end == std::string_view::npos ||
      name_end + 2 >= stat.size()) {
    return std::nullopt;
  }
  return ThreadTimes{Duration(ran), Duration(waited), stat[name_end + 2] == 'R'};
}

Duration time_kept(Duration gone, const ThreadTimes& begun, const ThreadTimes& now) {
  const Duration kept = now.runnable ? now.ran - begun.ran : gone - (now.waited - begun.waited);
  return std::clamp(kept, Duration(0), gone);
}

ThreadWatch::~ThreadWatch() {
  close_fd(schedstat_);
  close_fd(stat_);
}

void ThreadWatch::open() {
  const auto of_this_thread = [](const char* path) {
    return make_fd([path] { return ::open(path, O_RDONLY | O_CLOEXEC); });
  };
  schedstat_ = of_this_thread("/proc/thread-self/schedstat");
  stat_ = of_this_thread("/proc/thread-self/stat");
}

std::optional<ThreadTimes> ThreadWatch::read() const {
  ProcText schedstat{};
  ProcText stat{};
  return parse_thread_times(read_proc(schedstat_, schedstat), read_proc(stat_, stat));
}

void ThreadWatch::begin() {
  if (const auto now = read()) {
    ran_.store(now->ran, std::memory_order_relaxed);
    waited_.store(now->waited, std::memory_order_relaxed);
  }
}

Duration ThreadWatch::kept_since_begin(Duration gone) const {
  const auto now = read();
  const ThreadTimes begun{ran_.load(std::memory_order_relaxed),
                          waited_.load(std::memory_order_relaxed)};
  return now ? time_kept(gone, begun, *now) : gone;
}

}  // namespace nccl_ha::fabric::verbs
