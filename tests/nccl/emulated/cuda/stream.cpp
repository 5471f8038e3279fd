#include "tests/nccl/emulated/cuda/stream.h"

#include <pthread.h>

#include <deque>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/nccl/emulated/cuda/device.h"

namespace nccl_ha::emulated {

void Marker::set() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    time_ = std::chrono::steady_clock::now();
  }
  changed_.notify_all();
}

void Marker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

bool Marker::done() {
  const std::lock_guard lock(mutex_);
  return done_;
}

Marker::Time Marker::time() {
  const std::lock_guard lock(mutex_);
  return time_;
}

namespace {

struct Operation {
  std::function<void()> run;
  MarkerPtr marker;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, bool blocking, uint64_t id) : device_(device), blocking_(blocking), id_(id) {}

  MarkerPtr submit(std::function<void()> run, Length length) {
    auto marker = std::make_shared<Marker>();
    std::unique_lock lock(mutex_);
    last_ = marker;
    if (length == Length::short_one && queue_.empty() && !busy_) {
      busy_ = true;
      lock.unlock();
      run();
      marker->set();
      lock.lock();
      busy_ = false;
      if (queue_.empty()) {
        changed_.notify_one();  // the stream may have been closed meanwhile
      } else {
        start();
      }
      return marker;
    }
    queue_.push_back({std::move(run), marker});
    start();
    return marker;
  }

  MarkerPtr last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

  /// What is queued is still done, as cudaStreamDestroy promises.
  void close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_one();
  }

  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  uint64_t id() const { return id_; }

 private:
  /// With the lock held.
  void start() {
    changed_.notify_one();
    if (!running_) {
      running_ = true;
      std::thread([self = shared_from_this()] { self->work(); }).detach();
    }
  }

  void work() {
    pthread_setname_np(pthread_self(), "fake stream");
    use_device(device_);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !busy_ && (!queue_.empty() || closing_); });
      if (queue_.empty()) {
        return;
      }
      Operation next = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      next.run();
      next.run = nullptr;
      next.marker->set();
      lock.lock();
      busy_ = false;
    }
  }

  const int device_;
  const bool blocking_;
  const uint64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  MarkerPtr last_;
  bool busy_ = false;
  bool running_ = false;
  bool closing_ = false;
};

using StreamPtr = std::shared_ptr<Stream>;

/// Never destroyed: threads of streams outlive main().
struct Book {
  std::mutex mutex;
  std::unordered_map<cudaStream_t, StreamPtr> made;
  std::map<int, StreamPtr> legacy;  ///< by device
  uint64_t next_id = 100;
};

Book& book() {
  static auto* only = new Book;
  return *only;
}

bool is_legacy(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

/// nullptr where there is no such stream.
StreamPtr find(cudaStream_t stream) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  if (is_legacy(stream)) {
    StreamPtr& place = all.legacy[current_device()];
    if (!place) {
      place = std::make_shared<Stream>(current_device(), true, 1);
    }
    return place;
  }
  const auto found = all.made.find(stream);
  return found == all.made.end() ? nullptr : found->second;
}

StreamPtr legacy_of(int device) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  const auto found = all.legacy.find(device);
  return found == all.legacy.end() ? nullptr : found->second;
}

std::vector<StreamPtr> streams_of(int device) {
  std::vector<StreamPtr> of;
  {
    Book& all = book();
    const std::lock_guard lock(all.mutex);
    for (const auto& [handle, stream] : all.made) {
      if (stream->device() == device) {
        of.push_back(stream);
      }
    }
  }
  if (StreamPtr legacy = legacy_of(device)) {
    of.push_back(std::move(legacy));
  }
  return of;
}

void wait_in(const StreamPtr& stream, const MarkerPtr& marker) {
  if (marker && !marker->done()) {
    stream->submit([marker] { marker->wait(); }, Length::any);
  }
}

struct Event {
  std::mutex mutex;
  MarkerPtr marker;
};

Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

/// nullptr as long as the event was not recorded; that counts as done.
MarkerPtr marker_of(cudaEvent_t event) {
  const std::lock_guard lock(event_of(event)->mutex);
  return event_of(event)->marker;
}

}  // namespace

cudaError_t submit(cudaStream_t handle, std::function<void()> run, Length length,
                   MarkerPtr* marker) {
  const StreamPtr stream = find(handle);
  if (!stream) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (is_legacy(handle)) {
    for (const StreamPtr& other : streams_of(stream->device())) {
      if (other != stream && other->blocking()) {
        wait_in(stream, other->last());
      }
    }
  } else if (stream->blocking()) {
    if (const StreamPtr legacy = legacy_of(stream->device())) {
      wait_in(stream, legacy->last());
    }
  }
  MarkerPtr made = stream->submit(std::move(run), length);
  if (marker != nullptr) {
    *marker = std::move(made);
  }
  return cudaSuccess;
}

cudaError_t submit_and_wait(cudaStream_t handle, std::function<void()> run) {
  MarkerPtr marker;
  const cudaError_t status = submit(handle, std::move(run), Length::short_one, &marker);
  if (status == cudaSuccess) {
    marker->wait();
  }
  return status;
}

}  // namespace nccl_ha::emulated

using namespace nccl_ha::emulated;

extern "C" {

cudaError_t cudaDeviceSynchronize() {
  for (const StreamPtr& stream : streams_of(current_device())) {
    if (const MarkerPtr last = stream->last()) {
      last->wait();
    }
  }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  auto made = std::make_shared<Stream>(current_device(), (flags & cudaStreamNonBlocking) == 0,
                                       all.next_id++);
  *handle = reinterpret_cast<cudaStream_t>(made.get());
  all.made[*handle] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithFlags(handle, 0); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  return cudaStreamCreateWithFlags(handle, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  StreamPtr stream;
  {
    Book& all = book();
    const std::lock_guard lock(all.mutex);
    const auto found = all.made.find(handle);
    if (found == all.made.end()) {
      return fail(cudaErrorInvalidResourceHandle);
    }
    stream = std::move(found->second);
    all.made.erase(found);
  }
  stream->close();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const StreamPtr stream = find(handle);
  if (!stream) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (is_legacy(handle)) {
    return submit_and_wait(handle, [] {});
  }
  if (const MarkerPtr last = stream->last()) {
    last->wait();
  }
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const StreamPtr stream = find(handle);
  if (!stream) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  const MarkerPtr last = stream->last();
  return !last || last->done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const MarkerPtr marker = marker_of(event);
  if (!marker || marker->done()) {
    return cudaSuccess;
  }
  return submit(
      handle, [marker] { marker->wait(); }, Length::any);
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  const StreamPtr stream = find(handle);
  if (!stream) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  *id = stream->id();
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return submit(
      stream, [=] { function(argument); }, Length::any);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  MarkerPtr marker;
  const cudaError_t status = submit(
      handle, [] {}, Length::short_one, &marker);
  if (status == cudaSuccess) {
    const std::lock_guard lock(event_of(event)->mutex);
    event_of(event)->marker = std::move(marker);
  }
  return status;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
  return cudaEventRecord(event, handle);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const MarkerPtr marker = marker_of(event);
  return !marker || marker->done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const MarkerPtr marker = marker_of(event)) {
    marker->wait();
  }
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const MarkerPtr first = marker_of(from);
  const MarkerPtr second = marker_of(to);
  if (!first || !second) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(second->time() - first->time()).count();
  return cudaSuccess;
}

}  // extern "C"
