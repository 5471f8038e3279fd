// Streams between processes of a job: where there is a key for them (HA_NCCL_KEY_FILE) they are
// sealed, and their owners see of that only who did not show the key.
#pragma once

#include <memory>

#include "runtime/base/key_file.h"
#include "runtime/base/secret.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

/// Made where it is needed; what it refers to outlives the streams.
class PeerStreams {
 public:
  /// `keys` null: streams are as those of `streams`.
  PeerStreams(StreamFactory& streams, std::shared_ptr<KeyFile> keys, bool encrypts,
              SecretSource& secrets)
      : streams_(streams), keys_(std::move(keys)), encrypts_(encrypts), secrets_(secrets) {}

  /// As StreamFactory has them; a sealed one opens when both ends have shown the key.
  Result<std::unique_ptr<Stream>> connect_tcp(const sockaddr* to, const sockaddr* from,
                                              StreamOwner* owner);
  Result<std::unique_ptr<Stream>> adopt_fd(int fd, StreamOwner* owner);
  /// By which a stream that is dialled now would be sealed; null: by none.
  std::shared_ptr<const KeyRing> current_keys();

 private:
  StreamFactory& streams_;
  std::shared_ptr<KeyFile> keys_;
  bool encrypts_;
  SecretSource& secrets_;
};

}  // namespace nccl_ha
