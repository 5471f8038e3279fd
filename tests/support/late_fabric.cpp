#include "tests/support/late_fabric.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/datagram/udp_factory.h"

namespace nccl_ha::test {
namespace {

using fabric::Completion;
using fabric::FailureDomain;
using fabric::Path;
using fabric::PathOwner;
using fabric::PathState;

constexpr size_t length_bytes = 2;

std::byte filler(size_t at) { return static_cast<std::byte>(at * 7 + 3); }

/// Another path's, with a length before it and a known filling behind it.
std::vector<std::byte> wrap(std::span<const std::byte> inner, size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    made[i] = filler(i);
  }
  const auto length = static_cast<uint16_t>(inner.size());
  std::memcpy(made.data(), &length, length_bytes);
  std::copy(inner.begin(), inner.end(), made.begin() + length_bytes);
  return made;
}

/// Empty: not made by wrap(), or damaged.
std::span<const std::byte> unwrap(std::span<const std::byte> address) {
  uint16_t length = 0;
  if (address.size() < length_bytes) {
    return {};
  }
  std::memcpy(&length, address.data(), length_bytes);
  if (length + length_bytes > address.size()) {
    return {};
  }
  for (size_t i = length + length_bytes; i < address.size(); ++i) {
    if (address[i] != filler(i)) {
      return {};
    }
  }
  return address.subspan(length_bytes, length);
}

class LatePath final : public Path, private PathOwner {
 public:
  LatePath(Context& context, LatePaths& paths, std::vector<std::string> hosts, PathOwner* owner)
      : context_(context), paths_(paths), hosts_(std::move(hosts)), owner_(owner) {
    traits_.hops = static_cast<uint8_t>(hosts_.size());
    timer_.bind([](void* self) { static_cast<LatePath*>(self)->on_answer(); }, this);
    context.timers().arm(timer_, context.now() + paths.address_after);
  }
  ~LatePath() override { context_.timers().cancel(timer_); }
  PathOwner* as_owner() { return this; }
  void begin(std::unique_ptr<Path> inner) {
    inner_ = std::move(inner);
    const fabric::PathTraits& own = inner_->traits();
    traits_ = own;
    traits_.hops = static_cast<uint8_t>(hosts_.size());
  }

  std::span<const std::byte> local_address() const override { return address_; }
  bool address_ready() const override { return !address_.empty(); }
  Result<void> connect(std::span<const std::byte> peer_address) override {
    const auto inner = unwrap(peer_address);
    if (inner.empty() || peer_address.size() != paths_.address_bytes) {
      return nccl_ha::fail(Errc::invalid_argument, "late path: not an address of its kind");
    }
    ++paths_.connected;
    return inner_->connect(inner);
  }
  PathState state() const override { return inner_->state(); }
  fabric::CompletionStatus cause() const override { return inner_->cause(); }
  Errc post_write(const fabric::WritePost& post) override { return inner_->post_write(post); }
  Errc post_receive() override { return inner_->post_receive(); }
  const fabric::PathTraits& traits() const override { return traits_; }
  void failure_domains(fabric::FailureDomains& domains) const override {
    inner_->failure_domains(domains);
    for (const std::string& host : hosts_) {
      domains.push_back({FailureDomain::Kind::host, host});
    }
  }
  uint64_t progress() const override { return inner_->progress(); }
  void flush_acks() override { inner_->flush_acks(); }
  void fail(const Error& why) override {
    context_.timers().cancel(timer_);
    inner_->fail(why);
  }
  std::string describe() const override { return "late " + inner_->describe(); }

 private:
  void on_answer() {
    if (paths_.refused != 0) {
      --paths_.refused;
      inner_->fail(nccl_ha::fail(Errc::remote, "the host in between gives no address"));
      return;
    }
    ++paths_.addressed;
    address_ = wrap(inner_->local_address(), paths_.address_bytes);
    owner_->on_path_address(*this);
  }
  // PathOwner, of the path within
  void on_completion(const Completion& completion) override {
    Completion own = completion;
    own.path = this;
    owner_->on_completion(own);
  }
  void on_path_state(Path&, PathState state, const Error& error) override {
    owner_->on_path_state(*this, state, error);
  }
  void on_fence_stuck(Path&, const Error& error) override { owner_->on_fence_stuck(*this, error); }

  Context& context_;
  LatePaths& paths_;
  const std::vector<std::string> hosts_;
  PathOwner* owner_;
  fabric::PathTraits traits_;
  Timer timer_;
  std::vector<std::byte> address_;
  std::unique_ptr<Path> inner_;
};

/// The same without its setting, which is of another kind.
Config without_setting(Config config) {
  config.fabric = "datagram";
  return config;
}

class LateFactory final : public fabric::PathFactory {
 public:
  LateFactory(const Config& config, fabric::FabricHost& host, fabric::PortOpener opener,
              sim::Network& network, LatePaths& paths)
      : host_(host),
        paths_(paths),
        asked_for_(config.fabric == setting()),
        tie_(std::make_shared<sim::ProcessTie>()),
        within_(without_setting(config), host, std::move(opener),
                [this, &network](const fabric::SocketAddress& local)
                    -> Result<std::unique_ptr<fabric::PacketIo>> {
                  return network.open_packets(sim::Endpoint::of(local.get()).ip, tie_);
                }) {}

  fabric::FabricKind kind() const override { return late_kind; }
  const char* setting() const override { return "late"; }
  const char* text() const override { return "late paths"; }
  std::vector<fabric::NetDevice> devices() const override {
    std::vector<fabric::NetDevice> devices;
    if (asked_for_) {
      devices = within_.devices();
    }
    for (fabric::NetDevice& device : devices) {
      device.kind = kind();
    }
    return devices;
  }
  fabric::PathTraits traits(const fabric::NetDevice& device) const override {
    return within_.traits(device);
  }
  size_t paths_wanted() const override { return within_.paths_wanted(); }
  void add_places(const fabric::Attachment& of, std::vector<fabric::Place>& places) const override {
    if (of.kind != kind()) {
      return;
    }
    within_.add_places({of.device, within_.kind()}, places);
    for (fabric::Place& place : places) {
      place.at.kind = kind();
    }
  }
  uint16_t place_number(const fabric::Attachment& at, const sockaddr* local) const override {
    return within_.place_number(at, local);
  }
  std::string nic_of(const fabric::NetDevice& device, const sockaddr* local) const override {
    return within_.nic_of(device, local);
  }
  Result<fabric::OwnedPath> create_path(Context& context, const fabric::Attachment& at,
                                        const sockaddr* local, const fabric::PathOptions& options,
                                        PathOwner* owner) override {
    std::vector<std::string> hosts;
    for (const fabric::Hop& hop : options.route) {
      hosts.emplace_back(reinterpret_cast<const char*>(hop.bytes.data()), hop.length);
    }
    const auto interface = fabric::find_interface(*host_.interfaces.now(), local);
    if (paths_.through_hosts && interface) {
      hosts.push_back("host" + std::to_string(*interface));
    }
    ++paths_.made;
    auto made = std::make_unique<LatePath>(context, paths_, std::move(hosts), owner);
    auto inner = within_.create_path(context, at, local, options, made->as_owner());
    if (!inner) {
      return inner.error();
    }
    made->begin(std::move(inner->path));
    return fabric::OwnedPath{std::move(inner->port), std::move(made)};
  }

 private:
  fabric::FabricHost& host_;
  LatePaths& paths_;
  bool asked_for_;
  sim::ProcessTiePtr tie_;
  fabric::UdpFactory within_;
};

}  // namespace

fabric::Provider::Kind late_fabric(sim::Network& network, LatePaths& paths) {
  return
      [&](const Config& config, fabric::FabricHost& host) -> std::unique_ptr<fabric::PathFactory> {
        auto opener = fabric::PortOpener::from(config, host.memory);
        return std::make_unique<LateFactory>(config, host, *opener, network, paths);
      };
}

fabric::Hop hop_of(const std::string& name) {
  fabric::Hop hop;
  hop.length = static_cast<uint8_t>(std::min(name.size(), hop.bytes.size()));
  std::memcpy(hop.bytes.data(), name.data(), hop.length);
  return hop;
}

}  // namespace nccl_ha::test
