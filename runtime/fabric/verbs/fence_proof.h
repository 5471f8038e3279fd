// What proves that nothing of a broken queue pair touches memory any more.  Pure.
#pragma once

#include <cstdint>

#include "runtime/fabric/verbs/device_health.h"

namespace nccl_ha::fabric::verbs {

/// `confirmed`: after that the firmware answered a question.  A driver whose firmware has failed
/// takes commands that end something for done, as otherwise nobody could unload it, and refuses
/// those that ask (Linux, drivers/net/ethernet/mellanox/mlx5/core/cmd.c,
/// mlx5_internal_err_ret_value()).  So a 0 by itself proves nothing.
struct FenceEvidence {
  bool given = true;                   ///< the peer, or a post, could reach it
  bool stopped = false;                ///< it went into ERR: what comes back has meaning
  bool all_returned = false;           ///< all that the device was given came back
  bool return_confirmed = false;       ///< only together with all_returned
  bool destruction_confirmed = false;  ///< destroy_qp said 0
  bool silent = false;                 ///< after the peer has stopped: see Fence::on_peer_stopped()
  DeviceHealth::Level device = DeviceHealth::Level::good;
};

enum class FenceProof : uint8_t {
  none,       ///< it may still write; time proves nothing
  returned,   ///< a device in order has given back all of its work, or had none
  destroyed,  ///< a device in order knows it no more
  gone,       ///< the kernel has taken it down, and the device away from this process
  silence,    ///< none, but a site's word: firmware that hangs for so long does nothing any more
};

/// When a device goes, the kernel destroys all that a process had there, the newest first
/// (uverbs_destroy_ufile_hw() in drivers/infiniband/core), and the driver has reset the function
/// before that, or removes it.  So the oldest object tells: a completion channel, made before all
/// else, whose destruction shows in poll(), and to who reads (Device::taken_away()).  The
/// descriptor of events says no such thing: since Linux c485b19d52c4 (5.7) it stays open until the
/// process closes it, and ends with one more DEVICE_FATAL; how many come says nothing, as one that
/// is removed in order has one and one with an internal error two.  Before 5.7 it was closed then.
/// The kernel goes over the objects again and again while the driver fails to end some, and the
/// channel goes in the first pass.  All passes are over when the device's own entries in sysfs go,
/// which is after its users were told (disable_device() before device_del()): a descriptor of one
/// of them gives ENODEV from then on, whoever bears the device's name.  Where sysfs is not to be
/// seen, the channel alone tells.  What a driver cannot end at all, the kernel gives up with a
/// warning in its log, and nothing here tells. Who reads a closed channel and does not wait is told
/// since 62fab312fa16 (June 2023) only.  An errno value of a command is no such proof: commands are
/// refused from the moment at which the removal begins.
constexpr FenceProof proof_of(const FenceEvidence& known) {
  if (!known.given) {
    return FenceProof::returned;
  }
  if (known.device == DeviceHealth::Level::gone) {
    return FenceProof::gone;
  }
  if (known.device == DeviceHealth::Level::lost) {
    return FenceProof::none;
  }
  if (known.stopped && known.all_returned && known.return_confirmed) {
    return FenceProof::returned;
  }
  if (known.destruction_confirmed) {
    return FenceProof::destroyed;
  }
  return known.silent ? FenceProof::silence : FenceProof::none;
}

}  // namespace nccl_ha::fabric::verbs
