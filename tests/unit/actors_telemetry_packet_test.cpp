#include <gtest/gtest.h>

#include "actors/telemetry_packet.h"

namespace nccl_ha {
namespace {

TelemetryHeader a_header(TelemetryType type) {
  TelemetryHeader header;
  header.type = type;
  header.sender = 0x1122334455667788;
  header.number = 42;
  header.stamp = 1'700'000'000'000'000'000;
  header.key = 3;
  return header;
}

std::vector<CongestionEntry> some_congestion() {
  CongestionEntry one;
  one.flow = {{4, {10, 0, 1, 1}}, {4, {10, 0, 2, 1}}};
  one.rail = 1;
  one.level = 200;
  one.queue_bytes = 123456;
  CongestionEntry any;
  any.level = 7;
  return {one, any};
}

TEST(TelemetryPacket, CongestionComesBackAsItWas) {
  for (const bool tagged : {false, true}) {
    const auto entries = some_congestion();
    const auto bytes = encode(a_header(TelemetryType::congestion), std::span(entries), tagged);
    const auto frame = parse_telemetry(bytes);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->header.sender, 0x1122334455667788U);
    EXPECT_EQ(frame->header.number, 42U);
    EXPECT_EQ(frame->header.stamp, 1'700'000'000'000'000'000);
    EXPECT_EQ(frame->header.key, 3U);
    EXPECT_EQ(frame->tag.size(), tagged ? telemetry_tag_bytes : 0);
    EXPECT_EQ(frame->covered.size() + frame->tag.size(), bytes.size());
    const auto read = decode_congestion(*frame);
    ASSERT_TRUE(read);
    ASSERT_EQ(read->size(), 2U);
    EXPECT_EQ((*read)[0].flow, entries[0].flow);
    EXPECT_EQ((*read)[0].rail, 1);
    EXPECT_EQ((*read)[0].level, 200);
    EXPECT_EQ((*read)[0].queue_bytes, 123456U);
    EXPECT_EQ((*read)[1].flow, ha::Flow{});
    EXPECT_EQ((*read)[1].queue_bytes, std::nullopt);
    EXPECT_FALSE(decode_flow_notices(*frame));
    EXPECT_FALSE(decode_nic_reports(*frame));
  }
}

TEST(TelemetryPacket, NoticesAndReportsComeBackAsTheyWere) {
  const std::vector<FlowNotice> notices{{some_congestion()[0].flow, 2}};
  const auto begun = encode(a_header(TelemetryType::flow_begun), std::span(notices), true);
  const auto read = decode_flow_notices(*parse_telemetry(begun));
  ASSERT_TRUE(read);
  EXPECT_EQ((*read)[0].flow, notices[0].flow);
  NicReport report;
  report.address = {4, {10, 0, 1, 1}};
  report.rail = 1;
  report.bytes_out = uint64_t{1} << 40;
  report.pauses_in = 9;
  report.queue_in = 8;
  const auto reports = encode(a_header(TelemetryType::nic_report), std::span(&report, 1), true);
  const auto again = decode_nic_reports(*parse_telemetry(reports));
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)[0].address, report.address);
  EXPECT_EQ((*again)[0].bytes_out, report.bytes_out);
  EXPECT_EQ((*again)[0].pauses_in, 9U);
  EXPECT_EQ((*again)[0].queue_in, 8U);
}

TEST(TelemetryPacket, AsManyEntriesAsFitFit) {
  for (const TelemetryType type : {TelemetryType::congestion, TelemetryType::flow_begun}) {
    const size_t most = telemetry_entries_max(type);
    ASSERT_GT(most, 10U);
    const std::vector<CongestionEntry> entries(telemetry_entries_max(TelemetryType::congestion));
    const auto bytes = encode(a_header(TelemetryType::congestion), std::span(entries), true);
    EXPECT_LE(bytes.size(), telemetry_bytes_max);
    EXPECT_TRUE(parse_telemetry(bytes));
  }
}

TEST(TelemetryPacket, AnythingElseIsRefused) {
  const auto entries = some_congestion();
  const auto good = encode(a_header(TelemetryType::congestion), std::span(entries), true);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parse_telemetry(std::span(good).first(length))) << length;
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_telemetry(longer));
  // magic, version, type, length, flags, count, reserved
  for (const size_t offset : {0, 4, 5, 6, 36, 37, 38}) {
    auto bad = good;
    bad[offset] ^= std::byte{0x40};
    EXPECT_FALSE(parse_telemetry(bad)) << offset;
  }
  // A family, an address longer than its family, a rail, flags of the entry.
  for (const size_t offset : {40, 46, 74, 76}) {
    auto bad = good;
    bad[offset] ^= std::byte{0x40};
    const auto frame = parse_telemetry(bad);
    ASSERT_TRUE(frame);
    EXPECT_FALSE(decode_congestion(*frame)) << offset;
  }
}

}  // namespace
}  // namespace nccl_ha
