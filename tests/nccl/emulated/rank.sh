#!/usr/bin/env bash
# Starts one rank: RANK and WORLD_SIZE (or `nccl-ha lab run`) say which.  What NCCL must know where kernels are
# emulated: rings, two protocols, few channels, no memory that ranks share.
#
# usage: rank.sh BUILD PLUGIN|none PROGRAM [ARGUMENT]...     (none: NCCL's own sockets)
#
# Whatever is set already stays.  In a lab of namespaces:
#   nccl-ha lab run pair --script '...' -- rank.sh BUILD PLUGIN rank --seconds 12
# NHA_FAKE_NIC: set when ranks are to have a NIC with RDMA (tests/rig/nic).
# NHA_PRELOAD: libraries that a plugin with sanitizers needs first.
set -euo pipefail
build=$(cd "$1" && pwd)
export NCCL_NET_PLUGIN=$2
program=$build/$3
shift 3
export NCCL_ALGO=${NCCL_ALGO:-Ring} NCCL_PROTO=${NCCL_PROTO:-Simple}
export NCCL_P2P_LL_THRESHOLD=${NCCL_P2P_LL_THRESHOLD:-0}
export NCCL_MAX_NCHANNELS=${NCCL_MAX_NCHANNELS:-2} NCCL_MIN_NCHANNELS=${NCCL_MIN_NCHANNELS:-1}
export NCCL_P2P_DISABLE=${NCCL_P2P_DISABLE:-1} NCCL_SHM_DISABLE=${NCCL_SHM_DISABLE:-1}
export NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0
export NCCL_COLLNET_ENABLE=${NCCL_COLLNET_ENABLE:-0} NCCL_GIN_ENABLE=${NCCL_GIN_ENABLE:-0}
export NCCL_RAS_ENABLE=${NCCL_RAS_ENABLE:-0} NCCL_LOCAL_REGISTER=${NCCL_LOCAL_REGISTER:-0}
export NCCL_DEBUG=${NCCL_DEBUG:-INFO} NCCL_DEBUG_SUBSYS=${NCCL_DEBUG_SUBSYS:-INIT,NET,ENV}
if [ -n "${NHA_LAB_HOST:-}" ]; then
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-mgmt} HA_NCCL_IFNAME=${HA_NCCL_IFNAME:-rail}
else
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} NCCL_HOSTID=${NCCL_HOSTID:-host${RANK:-0}}
fi
build_libs=$build${NHA_FAKE_NIC:+:$build/nic}
export LD_LIBRARY_PATH=$build_libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -z "${NHA_PRELOAD:-}" ] || export LD_PRELOAD=$NHA_PRELOAD
exec "$program" "$@" 2>&1
