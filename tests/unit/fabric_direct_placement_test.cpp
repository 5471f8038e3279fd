#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "runtime/fabric/datagram/direct_placement.h"

namespace nccl_ha::fabric {
namespace {

constexpr size_t payload_bytes = 100;
constexpr size_t frame_bytes = header_bytes + payload_bytes;

/// A fragment of equal segments, cut into frames, and the memory that it is written to.
class DirectPlacementTest : public testing::Test {
 protected:
  FrameHeader header_of(uint32_t sequence) const {
    FrameHeader header;
    header.type = FrameType::put;
    header.path = 7;
    header.token = 8;
    header.sequence = sequence;
    header.payload_length = payload_bytes;
    header.fragment_length = static_cast<uint32_t>(memory_.size());
    header.fragment_offset = static_cast<uint32_t>(sequence * payload_bytes);
    header.address = reinterpret_cast<uint64_t>(memory_.data());
    header.flags = header.fragment_offset + payload_bytes == memory_.size() ? flag_last : 0;
    return header;
  }
  std::vector<std::byte> run_of(const std::vector<uint32_t>& sequences) const {
    std::vector<std::byte> run;
    for (const uint32_t sequence : sequences) {
      std::vector<std::byte> frame(frame_bytes, static_cast<std::byte>(sequence + 1));
      encode(header_of(sequence), frame.data());
      run.insert(run.end(), frame.begin(), frame.end());
    }
    return run;
  }
  /// Reads a run as the kernel does; returns how many parts it was cut into.
  size_t read(const std::vector<uint32_t>& sequences) {
    const std::vector<std::byte> run = run_of(sequences);
    const FrameHeader first = header_of(sequences.front());
    planned_ = placement_.plan(first, run.size(), frame_bytes,
                               [&](uint32_t sequence) { return !known_.contains(sequence); });
    const Placement placement = placement_.begin(memory_.data() + first.fragment_offset);
    size_t offset = 0;
    for (size_t i = 0; i < placement.part_count; ++i) {
      const iovec& part = placement.parts[i];
      std::memcpy(part.iov_base, run.data() + offset, part.iov_len);
      offset += part.iov_len;
    }
    EXPECT_EQ(offset, run.size()) << "all of it has a place";
    placement_.end(
        [&](const FrameHeader& header, std::span<const std::byte> payload) {
          EXPECT_EQ(payload.data(), memory_.data() + header.fragment_offset);
          placed_.push_back(header.sequence);
          return known_.insert(header.sequence).second;
        },
        [&](std::span<const std::byte> frame) {
          const auto header = decode(frame, frame.size());
          ASSERT_TRUE(header);
          std::memcpy(memory_.data() + header->fragment_offset, frame.data() + header_bytes,
                      header->payload_length);
          known_.insert(header->sequence);
          copied_.push_back(header->sequence);
        });
    return placement.part_count;
  }
  void expect_memory() const {
    for (const uint32_t sequence : known_) {
      for (size_t i = 0; i < payload_bytes; ++i) {
        ASSERT_EQ(memory_[sequence * payload_bytes + i], static_cast<std::byte>(sequence + 1))
            << "segment " << sequence;
      }
    }
  }

  DirectPlacement placement_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(80 * payload_bytes);
  std::set<uint32_t> known_;
  std::vector<uint32_t> placed_;
  std::vector<uint32_t> copied_;
  size_t planned_ = 0;
};

using Sequences = std::vector<uint32_t>;

TEST_F(DirectPlacementTest, ARunWithoutLossIsReadToItsPlace) {
  EXPECT_EQ(read({3, 4, 5}), 6U);
  EXPECT_EQ(planned_, 3 * payload_bytes);
  EXPECT_EQ(placed_, (Sequences{3, 4, 5}));
  EXPECT_TRUE(copied_.empty());
  expect_memory();
}

TEST_F(DirectPlacementTest, WhatFollowsALossIsMovedToItsPlace) {
  read({3, 5, 6, 4});
  EXPECT_EQ(placed_, Sequences{3});
  EXPECT_EQ(copied_, (Sequences{5, 6, 4}));
  EXPECT_EQ(known_.size(), 4U);
  expect_memory();
}

TEST_F(DirectPlacementTest, NothingIsReadOverWhatHasCome) {
  read({5});
  read({3, 4, 6});
  EXPECT_EQ(planned_, 2 * payload_bytes) << "the third would lie where segment 5 is";
  EXPECT_EQ(placed_, (Sequences{5, 3, 4}));
  EXPECT_EQ(copied_, Sequences{6});
  expect_memory();
}

TEST_F(DirectPlacementTest, NothingIsReadBehindTheFragment) {
  read({78, 79, 0, 1});
  EXPECT_EQ(planned_, 2 * payload_bytes);
  EXPECT_EQ(placed_, (Sequences{78, 79}));
  EXPECT_EQ(copied_, (Sequences{0, 1}));
  expect_memory();
}

TEST_F(DirectPlacementTest, ALongRunIsReadAsFarAsItMayBe) {
  Sequences sequences;
  for (uint32_t i = 0; i < 70; ++i) {
    sequences.push_back(i);
  }
  EXPECT_EQ(read(sequences), 2 * DirectPlacement::frames_max + 1);
  EXPECT_EQ(placed_.size(), DirectPlacement::frames_max);
  EXPECT_EQ(copied_, (Sequences{64, 65, 66, 67, 68, 69}));
  expect_memory();
}

TEST_F(DirectPlacementTest, TheSameSegmentTwiceInARunIsOfferedTwice) {
  read({3, 3});
  EXPECT_EQ(placed_, Sequences{3}) << "the second does not lie where it says";
  EXPECT_EQ(copied_, Sequences{3});
  expect_memory();
}

}  // namespace
}  // namespace nccl_ha::fabric
