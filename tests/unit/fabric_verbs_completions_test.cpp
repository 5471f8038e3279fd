// What each status of a completion means to the connections above.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "ha/error_class.h"
#include "tests/support/verbs_sides.h"

namespace nccl_ha::test {
namespace {

using fabric::CompletionStatus;
using ha::ErrorClass;

/// What the device reports, once, of the write that was posted last.
ibv_wc reported_once{};
bool to_report = false;
int (*post_seen_before)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

struct Meaning {
  ibv_wc_status status;
  CompletionStatus cause;
  ErrorClass what;  ///< whether a connection goes on without the path
};

constexpr Meaning meanings[] = {
    {IBV_WC_LOC_LEN_ERR, CompletionStatus::length_error, ErrorClass::program},
    {IBV_WC_LOC_QP_OP_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_LOC_EEC_OP_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_LOC_PROT_ERR, CompletionStatus::local_protection, ErrorClass::memory},
    {IBV_WC_WR_FLUSH_ERR, CompletionStatus::flushed, ErrorClass::path},
    {IBV_WC_MW_BIND_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_BAD_RESP_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_LOC_ACCESS_ERR, CompletionStatus::local_protection, ErrorClass::memory},
    // A write that the peer's device takes for a request of another kind is that device's fault.
    {IBV_WC_REM_INV_REQ_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_REM_ACCESS_ERR, CompletionStatus::remote_access, ErrorClass::memory},
    {IBV_WC_REM_OP_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_RETRY_EXC_ERR, CompletionStatus::retry_exceeded, ErrorClass::path},
    // The peer posts receives by credit, so that it never runs short of them while it works.
    {IBV_WC_RNR_RETRY_EXC_ERR, CompletionStatus::retry_exceeded, ErrorClass::path},
    {IBV_WC_LOC_RDD_VIOL_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_REM_INV_RD_REQ_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_REM_ABORT_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_INV_EECN_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_INV_EEC_STATE_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_FATAL_ERR, CompletionStatus::device_fault, ErrorClass::path},
    {IBV_WC_RESP_TIMEOUT_ERR, CompletionStatus::retry_exceeded, ErrorClass::path},
    {IBV_WC_GENERAL_ERR, CompletionStatus::device_fault, ErrorClass::path},
};

class Statuses : public VerbsSides, public testing::WithParamInterface<Meaning> {};

TEST_P(Statuses, OfAWriteSayWhoIsToBlame) {
  make();
  VerbsSide& side = sides_[0];
  ibv_context_ops& ops = side.device->context()->ops;
  reported_once = {};
  reported_once.status = GetParam().status;
  post_seen_before = ops.post_send;
  ops.post_send = [](ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
    reported_once.wr_id = request->wr_id;
    return post_seen_before(pair, request, bad);
  };
  sides_[1].nic->set_port(false);  // nothing arrives
  fabric::WritePost write;
  write.last = true;
  ASSERT_EQ(side.path->post_write(write), Errc::ok);
  to_report = true;
  ops.poll_cq = [](ibv_cq*, int, ibv_wc* out) {
    if (!std::exchange(to_report, false)) {
      return 0;
    }
    *out = reported_once;
    return 1;
  };
  EXPECT_TRUE(run([&] { return side.path->state() == fabric::PathState::error; },
                  std::chrono::milliseconds(1)));
  EXPECT_EQ(side.path->cause(), GetParam().cause);
  EXPECT_EQ(ha::classify(side.path->cause()), GetParam().what);
}

std::string name_of_status(const testing::TestParamInfo<Meaning>& info) {
  return "status_" + std::to_string(static_cast<int>(info.param.status));
}

INSTANTIATE_TEST_SUITE_P(All, Statuses, testing::ValuesIn(meanings), name_of_status);

/// libibverbs counts them from 0, which is success; the last ones are of tag matching.
static_assert(std::size(meanings) == IBV_WC_GENERAL_ERR);

}  // namespace
}  // namespace nccl_ha::test
