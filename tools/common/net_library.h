// Loading any NCCL network plugin and talking to it in one way, whatever ABI version it offers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/nccl_abi.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

inline constexpr int abi_oldest = 6;
inline constexpr int abi_newest = 12;

/// What a plugin tells about one of its devices, in the newest version's terms; what an older
/// version does not have keeps the value NCCL itself assumes.
struct NetDevice {
  std::string name;
  std::string pci_path;  ///< empty: none
  uint64_t guid = 0;
  int pointer_support = 0;  ///< NCCL_PTR_* bits
  int speed_mbps = 0;
  int port = 0;
  int max_comms = 0;
  int max_recvs = 1;  ///< widest grouped receive
  size_t max_message_bytes = 1ULL << 30;
};

/// The bytes one side's listen() hands to the other side's connect().
using NetHandle = std::array<std::byte, 128>;

/// Name of one of NCCL's result codes, such as "ncclSystemError".
const char* result_name(abi::NcclResult result);

/// Which of a plugin's messages are printed.
enum class PluginLog : uint8_t { nothing, warnings, everything };
/// Where plugin messages go: to standard error, each with `prefix` in front.  For the whole
/// process.
void set_plugin_log(const std::string& prefix, PluginLog level);
/// The plugin's latest WARN line; empty when there was none.
std::string last_plugin_warning();
/// All WARN lines since the last call, at most a hundred.
std::vector<std::string> take_plugin_warnings();

/// One plugin table of any version.  The set-up calls check what they get and give errors with the
/// name of the call, NCCL's code and the plugin's own last warning.  The data calls are thin: one
/// indirect call on top of the plugin's.  A comm is used by one thread at a time; the plugin must
/// outlive the NetApi.
class NetApi {
 public:
  /// `table` is an ncclNet_vN_t with N = `version`; refuses a table without the calls used here.
  static Result<NetApi> make(const void* table, int version);

  int version() const { return version_; }
  const char* name() const;

  /// `comm_id`: NCCL's number of a communicator, random and the same for all of its ranks; 0: none.
  Result<void> init(uint64_t comm_id = 0);
  Result<int> devices();
  Result<NetDevice> properties(int device);
  /// One more device, of several, as NCCL makes it; its number.
  Result<int> merge(std::vector<int> members);
  Result<void*> listen(int device, NetHandle& handle);
  /// nullptr: not yet, call again with the same handle.
  Result<void*> connect(int device, NetHandle& handle);
  /// nullptr: not yet, call again.
  Result<void*> accept(void* listen_comm);
  /// Registers host memory.
  Result<void*> register_memory(void* comm, void* data, size_t size);
  Result<void> deregister_memory(void* comm, void* mhandle);
  Result<void> close_send(void* comm);
  Result<void> close_recv(void* comm);
  Result<void> close_listen(void* comm);
  /// Ends what init() began; nothing for versions that have no such call.
  Result<void> finalize();

  /// *request is nullptr when the plugin cannot take the message yet.
  abi::NcclResult isend(void* comm, void* data, size_t size, int tag, void* mhandle,
                        void** request) const {
    return calls_.isend(table_, comm, data, size, tag, mhandle, request);
  }
  /// Receives `count` (at most 8) messages in one request; *request as in isend.
  abi::NcclResult irecv(void* comm, int count, void** data, const size_t* sizes, const int* tags,
                        void** mhandles, void** request) const {
    return calls_.irecv(table_, comm, count, data, sizes, tags, mhandles, request);
  }
  /// *done becomes 1 when the request ended; `sizes` then holds what arrived.
  abi::NcclResult test(void* request, int* done, int* sizes) const {
    return calls_.test(request, done, sizes);
  }
  abi::NcclResult iflush(void* comm, int count, void** data, int* sizes, void** mhandles,
                         void** request) const {
    return calls_.iflush(table_, comm, count, data, sizes, mhandles, request);
  }

  /// An error that names the call, the code and the plugin's last warning.
  Error call_failed(const char* call, abi::NcclResult result) const;

  /// One entry per call whose signature changed between versions.
  struct Calls {
    abi::NcclResult (*init)(const void* table, void** context, uint64_t comm_id);
    abi::NcclResult (*devices)(const void* table, int* count);
    abi::NcclResult (*properties)(const void* table, int device, NetDevice* out);
    /// Null: there is no such call.
    abi::NcclResult (*merge)(const void* table, int* device, const int* members, int count);
    abi::NcclResult (*listen)(const void* table, void* context, int device, void* handle,
                              void** comm);
    abi::NcclResult (*connect)(const void* table, void* context, int device, void* handle,
                               void** comm);
    abi::NcclResult (*accept)(const void* table, void* listen_comm, void** comm);
    abi::NcclResult (*register_memory)(const void* table, void* comm, void* data, size_t size,
                                       void** mhandle);
    abi::NcclResult (*deregister_memory)(const void* table, void* comm, void* mhandle);
    abi::NcclResult (*isend)(const void* table, void* comm, void* data, size_t size, int tag,
                             void* mhandle, void** request);
    abi::NcclResult (*irecv)(const void* table, void* comm, int count, void** data,
                             const size_t* sizes, const int* tags, void** mhandles, void** request);
    abi::NcclResult (*iflush)(const void* table, void* comm, int count, void** data, int* sizes,
                              void** mhandles, void** request);
    abi::NcclResult (*test)(void* request, int* done, int* sizes);
    abi::NcclResult (*close_send)(const void* table, void* comm);
    abi::NcclResult (*close_recv)(const void* table, void* comm);
    abi::NcclResult (*close_listen)(const void* table, void* comm);
    abi::NcclResult (*finalize)(const void* table, void* context);
    const char* (*name)(const void* table);
    const char* missing;  ///< the first call the table lacks; nullptr when it is complete
  };

 private:
  NetApi(const void* table, int version, const Calls& calls)
      : table_(table), version_(version), calls_(calls) {}

  const void* table_;
  int version_;
  Calls calls_;
  void* context_ = nullptr;  ///< what a v11 or newer init() made
};

/// A plugin's table in a library that stays loaded.
struct KnownNet {
  const void* table = nullptr;
  int abi = 0;
  std::string file;
};
/// nullopt: the name is none of those.
using KnownNets = std::optional<Result<KnownNet>> (*)(const std::string& name);
/// Names of plugins that are no files; by default there are none.  Before the first is opened.
void know_nets(KnownNets nets);

/// A loaded plugin.  Closing unloads the library, as NCCL does.
class NetLibrary {
 public:
  /// Loads FILE[:SYMBOL], our own plugin from beside this program (tools/common/plugin_search.h), a
  /// bare name by NCCL's rules (NAME, then libnccl-net-NAME.so, both along the loader's path), or
  /// what is known by that name.  `abi` 0 takes the newest version offered.
  static Result<std::unique_ptr<NetLibrary>> open(const std::string& name, int abi);
  ~NetLibrary();
  NetLibrary(const NetLibrary&) = delete;
  NetLibrary& operator=(const NetLibrary&) = delete;

  NetApi& api() { return api_; }
  /// The file that was loaded.
  const std::string& file() const { return file_; }

 private:
  NetLibrary(void* library, std::string file, NetApi api)
      : library_(library), file_(std::move(file)), api_(api) {}

  void* library_;  ///< nullptr: stays loaded
  std::string file_;
  NetApi api_;
};

/// FILE[:SYMBOL] taken apart.  A colon that is part of an existing file's name does not count.
struct PluginName {
  std::string file;
  std::string symbol;  ///< empty: search by version
};
PluginName split_plugin_name(const std::string& name);

}  // namespace nccl_ha::tools
