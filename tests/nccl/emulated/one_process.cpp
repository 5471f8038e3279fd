// Several fake GPUs in one process (NHA_FAKE_DEVICES), all in one group, so that the plugin has
// both ends of each connection.
//
//   one_process [ROUNDS]
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <vector>

#include "tests/nccl/emulated/process.h"

namespace nccl_ha::emulated {
namespace {

constexpr size_t elements = 100003;

float value(size_t device, size_t i) { return static_cast<float>((i + device) % 7); }

struct Device {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float* in = nullptr;
  float* sum = nullptr;
  float* got = nullptr;
};

class Round {
 public:
  explicit Round(size_t count) : devices_(count) {
    std::vector<ncclComm_t> comms(count);
    NHA_NEED(ncclCommInitAll(comms.data(), static_cast<int>(count), nullptr));
    for (size_t d = 0; d < count; ++d) {
      Device& device = devices_[d];
      device.comm = comms[d];
      NHA_NEED(cudaSetDevice(static_cast<int>(d)));
      NHA_NEED(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
      for (float** buffer : {&device.in, &device.sum, &device.got}) {
        NHA_NEED(cudaMalloc(reinterpret_cast<void**>(buffer), elements * sizeof(float)));
      }
      for (size_t i = 0; i < elements; ++i) {
        device.in[i] = value(d, i);
      }
    }
  }

  void run() {
    NHA_NEED(ncclGroupStart());
    for (const Device& d : devices_) {
      NHA_NEED(ncclAllReduce(d.in, d.sum, elements, ncclFloat32, ncclSum, d.comm, d.stream));
    }
    NHA_NEED(ncclGroupEnd());
    NHA_NEED(ncclGroupStart());
    for (size_t i = 0; i < devices_.size(); ++i) {
      const Device& d = devices_[i];
      const auto next = static_cast<int>((i + 1) % devices_.size());
      const auto previous = static_cast<int>(before(i));
      NHA_NEED(ncclSend(d.in, elements, ncclFloat32, next, d.comm, d.stream));
      NHA_NEED(ncclRecv(d.got, elements, ncclFloat32, previous, d.comm, d.stream));
    }
    NHA_NEED(ncclGroupEnd());
    for (const Device& d : devices_) {
      NHA_NEED(cudaStreamSynchronize(d.stream));
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
      compare(d);
    }
  }

  void end() {
    for (const Device& d : devices_) {
      NHA_NEED(ncclCommDestroy(d.comm));
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
      NHA_NEED(cudaSetDevice(static_cast<int>(d)));
      for (float* buffer : {devices_[d].in, devices_[d].sum, devices_[d].got}) {
        NHA_NEED(cudaFree(buffer));
      }
      NHA_NEED(cudaStreamDestroy(devices_[d].stream));
    }
  }

 private:
  size_t before(size_t d) const { return (d + devices_.size() - 1) % devices_.size(); }

  void compare(size_t d) const {
    for (size_t i = 0; i < elements; ++i) {
      float sum = 0;
      for (size_t e = 0; e < devices_.size(); ++e) {
        sum += value(e, i);
      }
      if (devices_[d].sum[i] != sum || devices_[d].got[i] != value(before(d), i)) {
        die("device " + std::to_string(d) + ": element " + std::to_string(i) + " is wrong");
      }
    }
  }

  std::vector<Device> devices_;
};

}  // namespace
}  // namespace nccl_ha::emulated

int main(int argc, char** argv) {
  using namespace nccl_ha::emulated;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  int devices = 0;
  NHA_NEED(cudaGetDeviceCount(&devices));
  for (int i = 0; i < rounds; ++i) {
    Round round(static_cast<size_t>(devices));
    round.run();
    round.end();
  }
  say("%d rounds on %d devices, every element right", rounds, devices);
  return 0;
}
