#include "runtime/streams/peer_streams.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/log.h"
#include "runtime/streams/stream_seal.h"

namespace nccl_ha {
namespace {

class SealedStream final : public Stream, private StreamOwner {
 public:
  SealedStream(StreamSeal seal, bool dials, StreamOwner* owner)
      : seal_(std::move(seal)), dials_(dials), owner_(owner) {}

  StreamOwner* inner_owner() { return this; }
  void set_inner(std::unique_ptr<Stream> inner) { inner_ = std::move(inner); }

  void set_owner(StreamOwner* owner) override { owner_ = owner; }
  Result<void> write(std::span<const std::byte> bytes) override {
    if (!seal_.open() || ended_) {
      return fail(Errc::closed, "the stream is not open");
    }
    auto written = inner_->write(seal_.close(bytes));
    if (!written) {
      seal_.take_back(bytes.size());
    }
    return written;
  }
  bool all_arrived() const override { return inner_->all_arrived(); }
  size_t backlog() const override { return inner_->backlog(); }
  void shutdown_then_close() override {
    owner_ = nullptr;
    inner_->shutdown_then_close();
  }
  Result<sockaddr_storage> local_address() override { return inner_->local_address(); }
  Result<sockaddr_storage> peer_address() override { return inner_->peer_address(); }
  const SharedKey* shared_key() const override { return seal_.shared(); }

 private:
  void on_stream_open(Stream& stream) override {
    greeted_ = true;
    if (auto written = stream.write(seal_.greet()); !written) {
      end(written.error());
    }
  }
  /// The owner may destroy this stream in either callback, so that each is the last thing done.
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override {
    const bool was_open = seal_.open();
    auto heard = seal_.hear(bytes);
    if (!heard) {
      end(heard.error());
      return;
    }
    if (!heard->answer.empty()) {
      if (auto written = stream.write(heard->answer); !written) {
        end(written.error());
        return;
      }
    }
    if (dials_ && !was_open && seal_.open() && owner_ != nullptr) {
      // It says something first, and whoever is dialled has nothing to say before.
      if (!heard->bytes.empty()) {
        end(fail(Errc::remote, "the peer of a sealed stream speaks before it is spoken to"));
        return;
      }
      owner_->on_stream_open(*this);
      return;
    }
    if (!heard->bytes.empty() && owner_ != nullptr) {
      owner_->on_stream_data(*this, heard->bytes);
    }
  }
  void on_stream_closed(Stream& stream, const Error& error) override {
    (void)stream;
    if (!dials_ || seal_.open() || !greeted_) {
      end(error);
      return;
    }
    end(fail(
        Errc::closed,
        fmt::format("{}; it did not show a key: HA_NCCL_KEY_FILE must name files with the same "
                    "keys on both hosts",
                    error.message()),
        error.sys));
  }
  void end(const Error& error) {
    if (ended_) {
      return;
    }
    ended_ = true;
    inner_->set_owner(nullptr);
    if (owner_ != nullptr) {
      owner_->on_stream_closed(*this, error);
    }
  }

  StreamSeal seal_;
  const bool dials_;
  StreamOwner* owner_;
  std::unique_ptr<Stream> inner_;
  bool greeted_ = false;  ///< the peer has been dialled, and this side has shown its key
  bool ended_ = false;
};

std::shared_ptr<const KeyRing> newest_keys(KeyFile& keys) {
  if (auto read = keys.refresh(); !read) {
    NHA_LOG_WARN_LIMITED("HA_NCCL_KEY_FILE: {}; the keys of before stay", read.error().message());
  }
  return keys.current();
}

std::unique_ptr<SealedStream> make_sealed(KeyFile& keys, bool dials, bool encrypts,
                                          SecretSource& secrets, StreamOwner* owner) {
  StreamSeal::Nonce nonce;
  secrets.fill(nonce);
  return std::make_unique<SealedStream>(StreamSeal(newest_keys(keys), dials, encrypts, nonce),
                                        dials, owner);
}

}  // namespace

Result<std::unique_ptr<Stream>> PeerStreams::connect_tcp(const sockaddr* to, const sockaddr* from,
                                                         StreamOwner* owner) {
  if (keys_ == nullptr) {
    return streams_.connect_tcp(to, from, owner);
  }
  auto sealed = make_sealed(*keys_, true, encrypts_, secrets_, owner);
  auto inner = streams_.connect_tcp(to, from, sealed->inner_owner());
  if (!inner) {
    return inner.error();
  }
  sealed->set_inner(std::move(*inner));
  return std::unique_ptr<Stream>(std::move(sealed));
}

std::shared_ptr<const KeyRing> PeerStreams::current_keys() {
  return keys_ == nullptr ? nullptr : newest_keys(*keys_);
}

Result<std::unique_ptr<Stream>> PeerStreams::adopt_fd(int fd, StreamOwner* owner) {
  if (keys_ == nullptr) {
    return streams_.adopt_fd(fd, owner);
  }
  auto sealed = make_sealed(*keys_, false, encrypts_, secrets_, owner);
  auto inner = streams_.adopt_fd(fd, sealed->inner_owner());
  if (!inner) {
    return inner.error();
  }
  sealed->set_inner(std::move(*inner));
  return std::unique_ptr<Stream>(std::move(sealed));
}

}  // namespace nccl_ha
