#include "runtime/fabric/provider.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/host.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/pages.h"
#include "runtime/engine/thread.h"

namespace nccl_ha::fabric {
namespace {

constexpr uint64_t megabit_bytes = 125'000;

/// The last quarter of what the process may have open is the job's: without it the job fails, and
/// without this descriptor only a path over another device.
int duplicate(int fd) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  rlimit limit{};
  if (own < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      static_cast<rlim_t>(own) < limit.rlim_cur - limit.rlim_cur / 4) {
    return own;
  }
  close(own);
  errno = EMFILE;
  return -1;
}

Error descriptor_not_kept(int error) {
  return fail(Errc::system, "its DMA-BUF descriptor could not be kept open when it was registered",
              error);
}

}  // namespace

Provider::~Provider() {
  host_.nics.renew_by(nullptr);
  kinds_.clear();  // they use what the host has
}

Result<std::unique_ptr<Provider>> Provider::make(const Config& config,
                                                 std::vector<NetInterface> interfaces,
                                                 size_t workers, const Sources& sources) {
  std::unique_ptr<Provider> provider(new Provider);
  provider->duplicate_ = duplicate;
  provider->host_.interfaces.set(std::move(interfaces));
  provider->ifname_ = config.ifname;
  provider->family_ = config.socket_family;
  provider->host_.workers = workers;
  if (sources.standard.secrets != nullptr) {
    provider->host_.memory.set_secrets(*sources.standard.secrets);
  }
  provider->forced_ = fabric_is_forced(config);
  provider->flushes_always_ = config.ib_flush != 0;
  for (const Kind& make : sources.kinds) {
    provider->kinds_.push_back(make(config, provider->host_));
  }
  auto standard = standard_kinds(config, provider->host_, sources.standard);
  if (!standard) {
    return standard.error();
  }
  std::move(standard->begin(), standard->end(), std::back_inserter(provider->kinds_));
  std::vector<const char*> settings;
  for (const auto& kind : provider->kinds_) {
    settings.push_back(kind->setting());
  }
  if (auto known = check_fabric_setting(config.fabric, settings); !known) {
    return known.error();
  }
  provider->choose_devices();
  for (const auto& kind : provider->kinds_) {
    kind->begin(*provider);
  }
  for (size_t i = 0; i < provider->devices().size(); ++i) {
    const Attachment at{i, provider->devices()[i].kind};
    provider->keeps_own_ = provider->keeps_own_ || provider->traits(at).keys_per_device;
  }
  provider->keeps_regions_ = config.enable_backup;  // also of one device, which may come back
  for (size_t i = 0; config.encrypt && i < provider->devices().size(); ++i) {
    const NetDevice& device = provider->devices()[i];
    if (provider->traits({i, device.kind}).placed_by_nic) {
      NHA_LOG_WARN(
          "HA_NCCL_ENCRYPT=1, but what {} sends over {} is neither encrypted nor shown to be this "
          "job's, as the NIC sends it: HA_NCCL_FABRIC=datagram does without RDMA",
          device.name, provider->text(device.kind));
    }
  }
  return provider;
}

void Provider::choose_devices() {
  for (const auto& kind : kinds_) {
    host_.devices = kind->devices();
    if (host_.devices.empty()) {
      continue;
    }
    if (!kind->universal()) {
      // Control connections better not share the fate of the rail they look after.
      InterfaceTable::List list = *host_.interfaces.now();
      std::stable_partition(list.begin(), list.end(),
                            [&](const NetInterface& own) { return !host_.beneath_device(own); });
      host_.interfaces.set(std::move(list));
    }
    return;
  }
}

void Provider::follow_kernel() {
  host_.nics.renew_by([this] {
    Look before = Look::none;
    while (!look_.compare_exchange_weak(before,
                                        before == Look::none ? Look::under_way : Look::once_more)) {
    }
    if (before != Look::none) {
      return;  // what is under way may have missed what is new, and looks once more
    }
    try {
      if (!errands_) {
        errands_ = std::make_unique<Errands>(false);
      }
      errands_->add([this] { look_at_interfaces(); });
    } catch (const std::bad_alloc&) {
      look_.store(Look::none);  // the next news begins a look
      throw;
    }
  });
}

void Provider::look_at_interfaces() {
  Look done = Look::under_way;
  do {
    look_.store(Look::under_way);
    run_to_its_end(
        [this] {
          if (const auto all = list_interfaces()) {
            renew_interfaces(*all);
          }
        },
        "a look at this host's interfaces");
    done = Look::under_way;
  } while (!look_.compare_exchange_strong(done, Look::none));
}

void Provider::renew_interfaces(const std::vector<NetInterface>& all) {
  const auto chosen = select_interfaces(all, ifname_, family_);
  if (host_.interfaces.renew(chosen ? *chosen : std::vector<NetInterface>())) {
    host_.nics.post({NicNotice::Kind::renewed, {}, {}});
  }
}

PathFactory* Provider::find(FabricKind kind) const {
  const auto found = std::find_if(kinds_.begin(), kinds_.end(),
                                  [&](const auto& one) { return one->kind() == kind; });
  return found == kinds_.end() ? nullptr : found->get();
}

PathFactory& Provider::factory(const Attachment& at) const {
  PathFactory* found = find(at.kind);
  NHA_ASSERT(found != nullptr, "a connection has a kind that its device does not accept");
  return *found;
}

const char* Provider::text(FabricKind kind) const {
  const PathFactory* found = find(kind);
  return found == nullptr ? "a fabric that is not known here" : found->text();
}

const char* Provider::setting(FabricKind kind) const {
  const PathFactory* found = find(kind);
  return found == nullptr ? "unknown" : found->setting();
}

bool Provider::is_universal(FabricKind kind) const {
  const PathFactory* found = find(kind);
  return found != nullptr && found->universal();
}

bool Provider::accepts(size_t device, FabricKind kind) const {
  const PathFactory* found = find(kind);
  return found != nullptr && found->serves(devices()[device]);
}

/// Incarnations are numbered over all devices of a host.
uint32_t Provider::returns() const {
  uint32_t latest = 0;
  for (const NetDevice& device : devices()) {
    latest = std::max(latest, factory({0, device.kind}).incarnation(device));
  }
  return latest;
}

Attachment Provider::live_at(size_t device, FabricKind kind) const {
  Attachment at{device, kind};
  at.returns = returns();  // before, so that it is not newer
  at.incarnation = factory(at).incarnation(devices()[device]);
  return at;
}

std::string Provider::refusal(size_t device, FabricKind kind) const {
  return fmt::format("the peer wants {}, but {} on {} uses {}{}", text(kind),
                     devices()[device].name, host_name(), text(devices()[device].kind),
                     forced_ ? " and HA_NCCL_FABRIC allows nothing else" : "");
}

std::optional<FabricKind> Provider::kind_towards(size_t device, FabricKind peer) const {
  const FabricKind own = devices()[device].kind;
  if (own == peer || is_universal(own)) {
    return own;
  }
  for (const auto& kind : kinds_) {
    if (kind->universal() && kind->serves(devices()[device])) {
      return kind->kind();
    }
  }
  return std::nullopt;
}

RailDevices Provider::rails_of(FabricKind kind, const RailDevices& devices) const {
  const PathFactory* found = find(kind);
  return found != nullptr && found->ways_at_once() > 1
             ? RailDevices::ways_of(devices.first(), found->ways_at_once())
             : devices;
}

size_t Provider::connections_max(size_t device, size_t most) const {
  return factory({device, devices()[device].kind}).connections_max(devices()[device], most);
}

Registration Provider::registration_at(const Attachment& at, bool host,
                                       const RegionKeys& keys) const {
  const PathTraits known = traits(at);
  return {.kind = at.kind,
          .host = host,
          .local_key = keys.local_key,
          .remote_key = keys.remote_key,
          .device = at.device,
          .incarnation = at.incarnation,
          .returns = returns(),
          .handle = keys.handle,
          .per_device = known.keys_per_device,
          .placed_by_nic = known.placed_by_nic};
}

void Provider::register_on_rails(const RailDevices& devices, uint64_t domain,
                                 Registration& registration) {
  const Attachment at{registration.device, registration.kind, 0, registration.incarnation};
  for (size_t i = 1; registration.per_device && i < devices.count; ++i) {
    auto keys = keys_on(live_at(devices.devices[i], at.kind), domain, at, registration.local_key,
                        true, Waits::caller);
    if (!keys) {
      NHA_LOG_WARN_LIMITED("{} carries no data of some memory: {}",
                           host_.devices[devices.devices[i]].name, keys.error().message());
      continue;
    }
    registration.rail_local_keys[i - 1] = keys->local_key;
    registration.rail_remote_keys[i - 1] = keys->remote_key;
  }
}

/// What is not known here of the rails' devices is asked for when it is needed.
Result<Registration> Provider::adapt(const Registration& known, const Attachment& at) {
  Registration adapted = known;
  adapted.rail_local_keys = {};
  adapted.rail_remote_keys = {};
  if (known.per_device && known.incarnation != at.incarnation) {
    const auto keys = on_other(
        {known.device, known.incarnation}, known.local_key, true, {at.opened(), 0}, Waits::worker,
        [&](const RegionOrigin& origin) {
          return origin.not_kept != 0 ? Result<RegionKeys>(descriptor_not_kept(origin.not_kept))
                                      : factory(at).add_memory(at, origin, Waits::worker);
        });
    if (!keys) {
      return keys.error();
    }
    adapted.local_key = keys->local_key;
    adapted.remote_key = keys->remote_key;
  }
  return adapted;
}

Result<Registration> Provider::add_memory(const Attachment& at, uint64_t domain, void* base,
                                          size_t length, bool gpu) {
  if (traits(at).keys_per_device) {
    const RegionOrigin origin{base, length, gpu};
    auto keys = factory(at).add_memory(at, origin, Waits::caller);
    if (!keys) {
      return keys.error();
    }
    if (keeps_regions_) {
      regions_.add(at.opened(), *keys, origin);
    }
    return registration_at(at, !gpu, *keys);
  }
  if (gpu && traits(at).reaches_gpu_memory) {
    return add_gpu_memory(at, domain, {base, length, true});
  }
  if (gpu) {
    return fail(Errc::invalid_usage,
                fmt::format("memory registration: this connection uses {}, which cannot reach GPU "
                            "memory; does the peer have no RDMA device?",
                            text(at.kind)));
  }
  auto key = host_.memory.add(domain, base, length);
  if (!key) {
    return key.error();
  }
  const RegionKeys keys{*key, *key, *key};
  if (keeps_own_) {
    regions_.add(own_table, keys, {.base = base, .length = length, .domain = domain});
  }
  return registration_at(at, true, keys);
}

Result<std::shared_ptr<OwnMemory>> Provider::own_memory(const Attachment& at, uint64_t domain,
                                                        std::shared_ptr<void> bytes, size_t length,
                                                        bool own_domain) {
  NHA_DASSERT(reinterpret_cast<uintptr_t>(bytes.get()) % page_bytes == 0,
              "it has pages of its own");
  if (!traits(at).keys_per_device) {
    return TableMemory::make(host_.memory, domain, std::move(bytes), length);
  }
  RegionOrigin origin{bytes.get(), length};
  if (own_domain) {
    origin.domain = domain;
  }
  return factory(at).own_memory(at, origin, std::move(bytes));
}

Result<Registration> Provider::add_dmabuf(const Attachment& at, uint64_t domain, void* base,
                                          size_t length, uint64_t offset, int fd) {
  if (!traits(at).reaches_gpu_memory || !device(at).dmabuf) {
    return fail(Errc::invalid_usage,
                "memory registration: this connection's device does not take DMA-BUF descriptors");
  }
  if (fd < 0) {
    return fail(Errc::invalid_argument, "memory registration: no DMA-BUF descriptor");
  }
  RegionOrigin origin{base, length, true, fd, offset};
  if (!traits(at).keys_per_device) {
    return add_gpu_memory(at, domain, origin);
  }
  auto keys = factory(at).add_memory(at, origin, Waits::caller);
  if (!keys) {
    return keys.error();
  }
  if (keeps_regions_) {
    keep_descriptor(origin);
    regions_.add(at.opened(), *keys, origin);
  }
  return registration_at(at, false, *keys);
}

/// Of our own: without one the memory cannot be registered elsewhere, which only a path over
/// another device misses.
void Provider::keep_descriptor(RegionOrigin& origin) const {
  if (origin.dmabuf_fd < 0) {
    return;
  }
  origin.dmabuf_fd = make_fd([&] { return duplicate_(origin.dmabuf_fd); });
  origin.not_kept = origin.dmabuf_fd < 0 ? errno : 0;
  if (origin.not_kept != 0) {
    NHA_LOG_WARN_LIMITED("no path over another device will reach some GPU memory: {}",
                         descriptor_not_kept(origin.not_kept).message());
  }
}

/// Its key is one of the own table, where the processor finds nothing: the devices at the ends of
/// paths know it (keys_in_domain()), the connection's own one from the beginning.
Result<Registration> Provider::add_gpu_memory(const Attachment& at, uint64_t domain,
                                              RegionOrigin origin) {
  const auto key = host_.memory.add(domain, origin.base, 0);
  if (!key) {
    return key.error();
  }
  origin.domain = domain;
  RegionOrigin kept = origin;
  keep_descriptor(kept);
  const RegionKeys keys{*key, *key, *key};
  regions_.add(own_table, keys, kept);
  const Registration made = registration_at(at, false, keys);
  const Attachment own = live_at(at.device, device(at).kind);
  const auto there = on_other(
      own_table, *key, true, {own.opened(), domain}, Waits::caller,
      [&](const RegionOrigin&) { return factory(own).add_memory(own, origin, Waits::caller); });
  if (!there) {
    static_cast<void>(remove_memory(made));
    return there.error();
  }
  return made;
}

bool Provider::has_gpu_memory(uint64_t domain) {
  return regions_.any(
      own_table, [&](const RegionOrigin& origin) { return origin.gpu && origin.domain == domain; });
}

Result<void> Provider::remove_memory(const Registration& registration, std::shared_ptr<void> keep) {
  if (!registration.per_device) {
    if (keeps_own_) {
      remove_elsewhere(own_table, registration.local_key, keep);
    }
    return host_.memory.remove(registration.local_key);
  }
  const Attachment at{registration.device, registration.kind, 0, registration.incarnation};
  if (keeps_regions_) {
    remove_elsewhere(at.opened(), registration.local_key, keep);
  }
  factory(at).remove_memory(
      at, {registration.local_key, registration.remote_key, registration.handle}, std::move(keep));
  return {};
}

void Provider::remove_elsewhere(const OpenedDevice& at, uint32_t local_key,
                                const std::shared_ptr<void>& keep) {
  for (const auto& [other, keys] : regions_.remove(at, local_key)) {
    remove_there(other, keys, keep);
  }
}

void Provider::remove_there(const RegionRegistry::Elsewhere& other, const RegionKeys& keys,
                            const std::shared_ptr<void>& keep) {
  if (other.at == own_table) {
    static_cast<void>(host_.memory.remove(keys.local_key));
  } else {
    const Attachment there{other.at.device, devices()[other.at.device].kind, 0,
                           other.at.incarnation};
    factory(there).remove_memory(there, keys, keep);
  }
}

Result<RegionKeys> Provider::on_other(const OpenedDevice& at, uint32_t key, bool key_is_local,
                                      const RegionRegistry::Elsewhere& other, Waits who,
                                      const RegionRegistry::Make& make) {
  return regions_.on_other(at, key, key_is_local, other, who, make,
                           [&](const RegionRegistry::Elsewhere& there, const RegionKeys& keys) {
                             // Nobody reaches memory by them, so nobody waits for their end.
                             remove_there(there, keys, std::make_shared<RegionKeys>(keys));
                           });
}

/// A name does for the device that a caller asked for itself; a peer would write by it.
Result<RegionKeys> Provider::add_there(const Attachment& other, const RegionOrigin& origin,
                                       Waits who) {
  if (origin.not_kept != 0) {
    return descriptor_not_kept(origin.not_kept);
  }
  auto keys = factory(other).add_memory(other, origin, who);
  return keys && keys->handle == 0
             ? fail(Errc::system, fmt::format("{} has failed", device(other).name), ENODEV)
             : keys;
}

Result<RegionKeys> Provider::keys_in_domain(const Attachment& other, uint64_t domain,
                                            uint32_t key) {
  const auto make = [&](const RegionOrigin& origin) -> Result<RegionKeys> {
    if (origin.domain != domain) {
      return fail(Errc::invalid_argument, "a memory key of another connection");
    }
    RegionOrigin there = origin;
    there.domain = domain;
    auto made = add_there(other, there, Waits::worker);
    if (!made && !origin.gpu && made.error().code != Errc::timed_out) {
      NHA_LOG_WARN_LIMITED("what {} does not reach is copied: {}", device(other).name,
                           made.error().message());
      return RegionKeys{};  // known from now on
    }
    return made;
  };
  auto keys = on_other(own_table, key, true, {other.opened(), domain}, Waits::worker, make);
  if (keys && keys->handle == 0) {
    return fail(Errc::invalid_usage, "memory that a device has not taken");
  }
  return keys;
}

Result<RegionKeys> Provider::keys_on(const Attachment& other, uint64_t domain, const Attachment& at,
                                     uint32_t key, bool key_is_local, Waits who) {
  const bool at_device = traits(other).keys_per_device;
  if (!traits(at).keys_per_device) {
    if (at_device) {
      return fail(Errc::invalid_usage,
                  fmt::format("memory of {} is not known to a device", text(at.kind)));
    }
    return RegionKeys{key, key, key};  // one table
  }
  if (other.kind == at.kind && other.opened() == at.opened()) {
    return RegionKeys{key, key, key};
  }
  const auto elsewhere = at_device ? RegionRegistry::Elsewhere{other.opened(), 0}
                                   : RegionRegistry::Elsewhere{own_table, domain};
  const auto make = [&](const RegionOrigin& origin) -> Result<RegionKeys> {
    if (at_device) {
      return add_there(other, origin, who);
    }
    if (origin.gpu) {
      return fail(Errc::invalid_usage, fmt::format("{} cannot reach GPU memory", text(other.kind)));
    }
    auto own = host_.memory.add(domain, origin.base, origin.length);
    if (!own) {
      return own.error();
    }
    return RegionKeys{*own, *own, *own};
  };
  return on_other(at.opened(), key, key_is_local, elsewhere, who, make);
}

bool Provider::memory_is_global(size_t device) const {
  const FabricKind own = devices()[device].kind;
  const bool alone = std::none_of(kinds_.begin(), kinds_.end(), [&](const auto& kind) {
    return kind->kind() != own && kind->serves(devices()[device]);
  });
  return alone && traits({device, own}).keys_per_device;
}

PathTraits Provider::traits(const Attachment& at) const {
  PathTraits traits = factory(at).traits(device(at));
  traits.bandwidth =
      at.kind == device(at).kind ? static_cast<uint64_t>(device(at).speed_mbps) * megabit_bytes : 0;
  return traits;
}

size_t Provider::paths_wanted(const Attachment& at) const { return factory(at).paths_wanted(); }

bool Provider::needs_flushes(const Attachment& at) const {
  const PathTraits known = traits(at);
  return known.placed_by_nic && (known.reaches_gpu_memory || flushes_always_);
}

uint16_t Provider::place_number(const Attachment& at, const sockaddr* local) const {
  return factory(at).place_number(at, local);
}

std::vector<Place> Provider::places(const Attachment& at) const {
  std::vector<Place> found;
  factory(at).add_places(at, found);
  for (const auto& kind : kinds_) {
    if (kind->kind() != at.kind) {
      kind->add_places(at, found);
    }
  }
  return found;
}

std::string Provider::nic_of(const Attachment& at, const sockaddr* local) const {
  const PathFactory* found = find(at.kind);
  return found == nullptr ? std::string() : found->nic_of(device(at), local);
}

Result<OwnedPath> Provider::create_path(Context& context, const Attachment& at,
                                        const sockaddr* local, const PathOptions& options,
                                        PathOwner* owner) {
  PathOptions own = options;
  own.nic = nic_of(at, local);
  return factory(at).create_path(context, at, local, own, owner);
}

}  // namespace nccl_ha::fabric
