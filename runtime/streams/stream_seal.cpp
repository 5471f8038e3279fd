#include "runtime/streams/stream_seal.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace nccl_ha {
namespace {

constexpr uint32_t magic = 0x5341484E;
constexpr uint16_t version = 1;
constexpr uint16_t flag_encrypt = 1;
constexpr size_t clear_bytes = StreamSeal::greeting_bytes - tag_bytes;
constexpr size_t length_bytes = sizeof(uint16_t);

// Each of a length of its own.
constexpr std::string_view purpose_greeting = "greeting of a stream";
constexpr std::string_view purpose_stream = "key of a stream";
constexpr std::string_view purpose_dialler = "records of who dials a stream";
constexpr std::string_view purpose_dialled = "records of who is dialled by a stream";
constexpr std::string_view purpose_beside = "what is sent beside a stream";

template <class T>
T number_at(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void add_number(std::vector<std::byte>& bytes, T value) {
  const size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

Error unknown_key() {
  return fail(Errc::remote, "the peer does not show a key that is in this host's HA_NCCL_KEY_FILE");
}

}  // namespace

StreamSeal::StreamSeal(std::shared_ptr<const KeyRing> keys, bool dials, bool encrypts,
                       const Nonce& nonce)
    : keys_(std::move(keys)),
      dials_(dials),
      encrypts_(encrypts),
      nonce_(nonce),
      number_(keys_->first()) {}

std::vector<std::byte> StreamSeal::greet() { return greeting(*keys_->find(number_)); }

std::vector<std::byte> StreamSeal::greeting(const HashKey& key) const {
  std::vector<std::byte> bytes;
  add_number(bytes, magic);
  add_number(bytes, version);
  add_number(bytes, static_cast<uint16_t>(encrypts_ ? flag_encrypt : 0));
  add_number(bytes, number_);
  bytes.insert(bytes.end(), nonce_.begin(), nonce_.end());
  const Tag tag = make_tag(key, purpose_greeting, bytes);
  bytes.insert(bytes.end(), tag.begin(), tag.end());
  return bytes;
}

/// From now on this side's own greeting is settled.
void StreamSeal::agree(std::span<const std::byte> other) {
  const std::vector<std::byte> own = greeting(*keys_->find(number_));
  const auto mine = std::span(own).first(clear_bytes);
  const auto theirs = other.first(clear_bytes);
  const HashKey key = derive_key(*keys_->find(number_), purpose_stream, dials_ ? mine : theirs,
                                 dials_ ? theirs : mine);
  const bool wanted = (number_at<uint16_t>(other, 6) & flag_encrypt) != 0;
  shared_ = SharedKey{derive_key(key, purpose_beside, {}), encrypts_ || wanted};
  Direction from_dialler{Aead(derive_key(key, purpose_dialler, {}))};
  Direction from_dialled{Aead(derive_key(key, purpose_dialled, {}))};
  out_ = dials_ ? from_dialler : from_dialled;
  in_ = dials_ ? from_dialled : from_dialler;
}

Result<void> StreamSeal::on_greeting(std::span<const std::byte, greeting_bytes> greeting,
                                     Heard& heard) {
  const auto clear = greeting.first<clear_bytes>();
  const auto tag = greeting.last<tag_bytes>();
  const auto number = number_at<uint32_t>(clear, 8);
  const HashKey* key = keys_->find(number);
  if (number_at<uint32_t>(clear, 0) != magic || number_at<uint16_t>(clear, 4) != version ||
      key == nullptr || (dials_ && number != number_)) {
    return unknown_key();
  }
  if (!dials_) {
    if (!same_tag(make_tag(*key, purpose_greeting, clear), tag)) {
      return unknown_key();
    }
    number_ = number;
  }
  agree(clear);
  const HashKey of_stream = shared_->key;
  if (!dials_) {
    heard.answer = this->greeting(of_stream);
  } else if (!same_tag(make_tag(of_stream, purpose_greeting, clear), tag)) {
    shared_.reset();
    return unknown_key();
  }
  return {};
}

std::vector<std::byte> StreamSeal::close(std::span<const std::byte> bytes) {
  std::vector<std::byte> records;
  while (!bytes.empty()) {
    const auto body = bytes.first(std::min(bytes.size(), record_max));
    bytes = bytes.subspan(body.size());
    const size_t begin = records.size();
    add_number(records, static_cast<uint16_t>(body.size()));
    records.insert(records.end(), body.begin(), body.end());
    const auto record = std::span(records).subspan(begin);
    const size_t clear = shared_->encrypts ? length_bytes : record.size();
    const Tag tag = out_->key.seal(++out_->count, record.first(clear), record.subspan(clear));
    records.insert(records.end(), tag.begin(), tag.end());
  }
  return records;
}

Result<StreamSeal::Heard> StreamSeal::hear(std::span<const std::byte> bytes) {
  input_.insert(input_.end(), bytes.begin(), bytes.end());
  std::span<const std::byte> rest = input_;
  Heard heard;
  if (!open()) {
    if (rest.size() >= sizeof magic && number_at<uint32_t>(rest, 0) != magic) {
      return unknown_key();
    }
    if (rest.size() < greeting_bytes) {
      return heard;
    }
    if (auto right = on_greeting(rest.first<greeting_bytes>(), heard); !right) {
      return right.error();
    }
    rest = rest.subspan(greeting_bytes);
  }
  while (rest.size() >= length_bytes) {
    const size_t length = number_at<uint16_t>(rest, 0);
    if (length == 0 || length > record_max) {
      return fail(Errc::remote, "a record of a sealed stream has a length that none has");
    }
    if (rest.size() < length_bytes + length + tag_bytes) {
      break;
    }
    const auto record = rest.first(length_bytes + length);
    const auto clear = record.first(shared_->encrypts ? length_bytes : record.size());
    const auto secret = record.subspan(clear.size());
    const size_t begin = heard.bytes.size();
    heard.bytes.resize(begin + length);
    const uint64_t place = in_->count + 1;
    if (!in_->key.open(place, clear, secret, rest.subspan(record.size()).first<tag_bytes>(),
                       heard.bytes.data() + begin)) {
      return fail(Errc::remote,
                  "a record of a sealed stream is not the one that its peer sent next");
    }
    in_->count = place;
    if (!shared_->encrypts) {
      std::ranges::copy(record.subspan(length_bytes),
                        heard.bytes.begin() + static_cast<ptrdiff_t>(begin));
    }
    rest = rest.subspan(record.size() + tag_bytes);
  }
  input_.erase(input_.begin(), input_.end() - static_cast<ptrdiff_t>(rest.size()));
  return heard;
}

}  // namespace nccl_ha
