#include "tests/rig/guests/guest_scripts.h"

namespace nccl_ha::tools::lab {

const std::string_view guest_init = R"sh(#!/bin/sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
while read -r module; do
  busybox insmod "/modules/$module" || echo "cannot load $module"
done < /modules/order
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /lower
busybox mount -t tmpfs -o size=75% layer /layer
busybox mkdir /layer/upper /layer/work
busybox mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work root /root
busybox mount -t proc proc /root/proc
busybox mount -t sysfs sys /root/sys
busybox mount -t devtmpfs dev /root/dev
busybox mkdir -p /root/dev/shm /root/dev/pts
busybox ln -s /proc/self/fd /root/dev/fd
busybox ln -s /proc/self/fd/0 /root/dev/stdin
busybox ln -s /proc/self/fd/1 /root/dev/stdout
busybox ln -s /proc/self/fd/2 /root/dev/stderr
busybox mount -t tmpfs shm /root/dev/shm
busybox mount -t devpts pts /root/dev/pts
busybox mount -t tmpfs run /root/run
busybox mkdir /root/run/nccl-ha-lab
busybox cp /agent /root/run/nccl-ha-lab/agent
busybox chroot /root /bin/bash /run/nccl-ha-lab/agent
echo "the lab's agent ended with status $?"
busybox poweroff -f
)sh";

const std::string_view guest_agent =
    R"sh(# Talks to nha-guests, see tests/rig/guests/guest_scripts.h.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
for port in /sys/class/virtio-ports/*; do
  case $(<"$port/name") in
    ctl) exec 3<>"/dev/${port##*/}" ;;
    out) exec 4>"/dev/${port##*/}" ;;
    err) exec 5>"/dev/${port##*/}" ;;
  esac
done
broken() {
  echo "broken $*" >&3
  exit 1
}
option() {
  local word
  for word in $(</proc/cmdline); do
    [ "${word%%=*}" = "$1" ] && echo "${word#*=}"
  done
}
hostname "$(option nha.host)"
ulimit -l unlimited
mtu=$(option nha.mtu)
ip link set lo up
# Without this an address is of no use for the first second.
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
devices=0
for port in $(option nha.port); do
  IFS=/ read -r name mac address length management <<<"$port"
  found=
  for interface in /sys/class/net/*; do
    [ "$(<"$interface/address")" = "$mac" ] && found=${interface##*/}
  done
  [ -n "$found" ] || broken "there is no interface with address $mac"
  ip link set "$found" name "$name" &&
    { [ -z "$address" ] || ip addr add "$address/$length" dev "$name"; } &&
    ip link set "$name" mtu "$mtu" up || broken "cannot set up interface $name"
  if [ "$management" = 0 ]; then
    rdma link add "rxe$devices" type rxe netdev "$name" || broken "cannot put Soft-RoCE on $name"
    devices=$((devices + 1))
  fi
done
# The GID of RoCE v2 over IPv4, which routers and other devices agree on.
lab_gid_index() {
  local file
  for file in "/sys/class/infiniband/$1/ports/1/gids/"*; do
    case $(<"$file") in 0000:0000:0000:0000:0000:ffff:*) echo "${file##*/}"; return ;; esac
  done
  return 1
}
export -f lab_gid_index
shared=$(option nha.share)
if [ -n "$shared" ]; then
  mkdir -p "$shared" &&
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=none share "$shared" ||
    broken "cannot mount $shared"
fi
echo ready >&3
while IFS= read -r line <&3; do
  token=${line%% *}
  text=${line#* }
  (
    (
      exec </dev/null >&4 2>&5 3>&- 4>&- 5>&-
      eval "$text"
    )
    status=$?
    printf '\0%s %d\n' "$token" "$status" >&4
    printf '\0%s %d\n' "$token" "$status" >&5
  ) &
done
)sh";

}  // namespace nccl_ha::tools::lab
