#include "actors/connection/clear_to_sends.h"

#include <algorithm>

namespace nccl_ha {

ClearToSends::Verdict ClearToSends::take_announced(const fabric::Completion& completion,
                                                   size_t lane, uint32_t epoch, News& news) {
  const uint64_t next = channel_.published_groups();
  const Announcement announced = Announcement::unpack(completion.immediate);
  const size_t count = completion.bytes / sizeof(CtsEntry);
  // After a path was lost the receiver announces again what it cannot know to have arrived.
  const uint64_t again = Immediate::group_distance(announced.group, next);
  bool good = completion.has_immediate && Immediate::same_epoch(completion.immediate, epoch) &&
              Immediate::unpack(completion.immediate).kind == ImmediateKind::clear_to_send &&
              again <= std::min<uint64_t>(next, Immediate::groups_told_apart / 2) && count >= 1 &&
              completion.bytes == count * sizeof(CtsEntry) &&
              announced.first_entry + count <= cts_entries;
  std::span<const CtsEntry> left;
  if (good) {
    left = std::span(*ring(lane)).subspan(announced.first_entry, count);
  }
  uint64_t end = next - again;
  for (; good && !left.empty(); ++end) {
    if (end < next && left.front().group > end) {
      // So late that the ring holds other groups at its place, which the receiver writes once all
      // of these are done.
      return Verdict::good;
    }
    const size_t taken = end < next ? channel_.known_group(left, end) : channel_.publish(left);
    good = taken != 0;
    note(end, left.first(taken));
    left = left.subspan(taken);
  }
  if (!good) {
    return Verdict::malformed;
  }
  news = {next, channel_.published_groups() - next};
  if (news.groups != 0 || end == next) {
    lane_ = lane;
    next_entry_ = (announced.first_entry + count) % cts_entries;
  }
  if (end > told_groups_) {
    told_groups_ = end;
    told_entry_ = (announced.first_entry + count) % cts_entries;
  }
  NHA_DASSERT(told_groups_ <= channel_.published_groups(), "what was told of is published");
  return Verdict::good;
}

[[gnu::hot]] bool ClearToSends::find(News& news) {
  const uint64_t next = channel_.published_groups();
  if (next - told_groups_ >= cts_found_ahead_max) {
    return false;
  }
  const size_t count = channel_.publish_if_there(std::span(*ring(lane_)).subspan(next_entry_));
  if (count == 0) {
    return false;
  }
  note(next, channel_.entries_of(next).first(count));
  news = {next, 1};
  next_entry_ = (next_entry_ + count) % cts_entries;
  return true;
}

}  // namespace nccl_ha
