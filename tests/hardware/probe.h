// What nha-nic-probe is made of: one end of a queue pair, figures, and JSON.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace nccl_ha::hardware {

using Clock = std::chrono::steady_clock;

/// Ends the program with status 2: it cannot measure.
[[noreturn]] void give_up(const std::string& why);
/// The same unless it holds; errno is said where it is not 0.
void require(bool holds, const char* what);

inline double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Microseconds that something took, each time.
class Times {
 public:
  void add(double us) { all_.push_back(us); }
  /// Runs it; `what` must hold for what it returns, 0.
  template <class Call>
  void take(const char* what, Call&& call) {
    const auto start = Clock::now();
    const int error = call();
    add(us_since(start));
    require(error == 0, what);
  }
  size_t count() const { return all_.size(); }
  double max() const;
  /// {"count": ..., "p50_us": ..., "p99_us": ..., "max_us": ...}
  std::string json() const;

 private:
  std::vector<double> all_;
};

/// In the order in which they were added; values are JSON already.
class Object {
 public:
  Object& add(const std::string& name, const std::string& json);
  Object& add(const std::string& name, uint64_t number);
  Object& add(const std::string& name, int number);
  Object& add(const std::string& name, double number);
  Object& add_text(const std::string& name, const std::string& text);
  std::string json() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

struct Options {
  std::string device;  ///< empty: the first one with an active port
  int port = 1;
  int gid = -1;  ///< -1: the first of RoCE v2 with an IPv4 address
  int repeat = 200;
  int rounds = 20;   ///< of queue pairs that end under load
  int timeout = 14;  ///< of queue pairs, as HA_NCCL's default is
  int retries = 7;
  std::string peer;  ///< HOST:PORT of the side that listens; empty: this one does
  int listen = 0;
};

/// A device that is open.
struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_device_attr attributes{};
  ibv_port_attr port{};
  int port_number = 1;
  int gid_index = 0;
  ibv_gid gid{};

  explicit Device(const Options& options);
  bool infiniband() const { return port.link_layer == IBV_LINK_LAYER_INFINIBAND; }
};

/// What the peer must know of a queue pair and its memory.
struct Address {
  uint32_t number = 0;
  uint32_t lid = 0;
  ibv_gid gid{};
  uint64_t memory = 0;
  uint32_t key = 0;
  uint32_t mtu = 0;
};

/// One end: a queue pair with a completion queue and memory of its own.
class End {
 public:
  static constexpr uint32_t depth = 64;
  /// `access`: more of IBV_ACCESS_* for its memory.
  End(Device& device, size_t bytes, unsigned access = 0);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  Address address() const;
  void connect(const Address& peer, const Options& options);
  int to_error();
  int destroy();

  /// 0 or the errno value.  `signaled`: a completion is wanted.
  int write(uint64_t id, size_t offset, uint32_t bytes, bool immediate, uint32_t value,
            size_t to = 0, bool signaled = true);
  int read_back();  ///< a READ of 1 byte, of what it is connected to
  void post_receive(uint64_t id);
  /// Polls once.
  bool poll(ibv_wc* wc) { return ibv_poll_cq(cq, 1, wc) == 1; }
  /// False: none came in time.
  bool complete(ibv_wc* wc, double limit_s);

  Device& device;
  std::vector<char*> pages;
  char* memory = nullptr;
  size_t bytes = 0;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  Address peer;
};

/// TCP to the other probe: addresses, and words of one byte that keep both in step.
class Wire {
 public:
  explicit Wire(const Options& options);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  Address exchange(const Address& mine);
  void say(char word);
  char hear(double limit_s = 60);
  /// Without waiting; 0: nothing yet.
  char heard();
  bool first() const { return first_; }  ///< the side that sends data

 private:
  void transfer(void* bytes, size_t count, bool out, double limit_s);
  int fd_ = -1;
  bool first_ = false;
};

/// An end whose peer is the other probe's.
struct Pair {
  End end;
  Pair(Device& device, Wire& wire, const Options& options, size_t bytes, unsigned access = 0)
      : end(device, bytes, access) {
    end.connect(wire.exchange(end.address()), options);
    wire.exchange({});  // both are ready
  }
};

// Each returns JSON.
std::string list_devices();
std::string measure_verbs(const Options& options);
std::string measure_order(Device& device, Wire& wire, const Options& options);
std::string measure_end_under_load(Device& device, Wire& wire, const Options& options);
std::string measure_verbs_under_load(Device& device, Wire& wire, const Options& options);
/// Says "streaming" on stdout when the link may go down.
std::string measure_link_down(Device& device, Wire& wire, const Options& options);
/// Some of every verb, for `times`.
void time_verbs(Device& device, const Options& options, int repeat,
                std::map<std::string, Times>& times);
std::string times_json(const std::map<std::string, Times>& times);

}  // namespace nccl_ha::hardware
