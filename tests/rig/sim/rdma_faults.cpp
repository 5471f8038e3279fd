#include "tests/rig/sim/rdma_faults.h"

#include <algorithm>
#include <cerrno>

namespace nccl_ha::sim {
namespace {

using std::chrono::microseconds;

struct Kind {
  const char* name;
  std::array<int, 3> errors;  ///< what drivers give
};
constexpr std::array<Kind, verb_count> kinds{{
    {"create_comp_channel", {EMFILE, ENOMEM, EINVAL}},
    {"create_cq", {ENOMEM, EINVAL, EAGAIN}},
    {"create_qp", {ENOMEM, EINVAL, EAGAIN}},
    {"modify_qp to INIT", {EINVAL, EIO, ENOMEM}},
    {"modify_qp to RTR", {ETIMEDOUT, EINVAL, EHOSTUNREACH}},
    {"modify_qp to RTS", {EINVAL, EIO, ENOMEM}},
    {"modify_qp to ERR", {EIO, EINVAL, ETIMEDOUT}},
    {"destroy_qp", {EBUSY, EIO, ETIMEDOUT}},
    {"reg_mr", {ENOMEM, EFAULT, EINVAL}},
    {"reg_dmabuf_mr", {ENOMEM, EINVAL, EOPNOTSUPP}},
    {"dup of a descriptor", {EMFILE, ENOMEM, EMFILE}},
    {"create_ah", {EHOSTUNREACH, ETIMEDOUT, ENOMEM}},
    {"post_send", {ENOMEM, EINVAL, EFAULT}},
    {"post_recv", {ENOMEM, EINVAL, ENOMEM}},
    {"poll_cq", {EIO, EIO, EIO}},
}};

}  // namespace

const char* to_text(Verb verb) { return kinds[static_cast<size_t>(verb)].name; }

void VerbFaults::force(Verb verb, uint64_t nth, int error) {
  forced_.push_back({verb, calls(verb) + nth, error});
}

int VerbFaults::call(Verb verb) {
  const auto at = static_cast<size_t>(verb);
  const uint64_t number = ++calls_[at];
  int error = 0;
  const auto forced = std::find_if(forced_.begin(), forced_.end(), [&](const Forced& one) {
    return one.verb == verb && one.call == number;
  });
  if (forced != forced_.end()) {
    error = forced->error;
    forced_.erase(forced);
  } else if (random_.chance(faults.fails[at])) {
    error = kinds[at].errors[random_.below(kinds[at].errors.size())];
  }
  failures_[at] += error != 0 ? 1 : 0;
  return error;
}

Duration VerbFaults::time_of_call() {
  return random_.chance(faults.slow)
             ? Duration(random_.below(static_cast<uint64_t>(faults.slowest.count()) + 1))
             : Duration{};
}

DeviceTraits draw_device_traits(Random& random) {
  DeviceTraits traits;
  traits.infiniband = random.chance(0.25);
  traits.mtu = random.chance(0.7) ? 4096 : 1024;
  // What devices give: 2^30 or 2^31.  Smaller ones make large messages of several writes.
  traits.message_max = random.chance(0.8) ? 1U << 30 : 8192U << random.below(8);
  traits.inline_max = random.chance(0.7) ? 256 : static_cast<uint32_t>(64 * random.below(3));
  return traits;
}

DeviceFaults draw_device_faults(Random& random) {
  DeviceFaults faults;
  if (random.chance(0.5)) {
    return faults;
  }
  if (random.chance(0.3)) {  // calls now and then, of one kind or of all
    const auto only = static_cast<Verb>(random.below(verb_count));
    const bool all = random.chance(0.5);
    for (const Verb verb :
         {Verb::create_channel, Verb::create_queue, Verb::create_pair, Verb::to_init,
          Verb::to_ready_to_receive, Verb::to_ready_to_send, Verb::to_error, Verb::make_route}) {
      faults[verb] = all || verb == only ? 0.05 + 0.3 * random.unit() : 0;
    }
    for (const Verb verb : {Verb::post_send, Verb::post_receive, Verb::poll}) {
      faults[verb] = all || verb == only ? 0.002 * random.unit() : 0;
    }
  }
  if (random.chance(0.2)) {
    faults.slow = 0.3;
    faults.slowest = microseconds(1 + random.below(20000));
  }
  if (random.chance(0.4)) {
    faults.error_lag = microseconds(1 + random.below(500));
  }
  if (random.chance(0.3)) {
    faults.keeps_work = random.chance(0.5) ? 1 : 0.5;
  }
  faults.destroy_takes_completions = random.chance(0.5);
  if (random.chance(0.5)) {
    faults.in_pieces = 0.3;
    faults.landing = microseconds(1 + random.below(random.chance(0.3) ? 100 : 5));
    faults.relaxed = random.chance(0.5);
  }
  faults.gpu_landing = microseconds(1 + random.below(20));
  return faults;
}

}  // namespace nccl_ha::sim
