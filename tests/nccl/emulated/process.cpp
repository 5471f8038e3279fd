#include "tests/nccl/emulated/process.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "tests/nccl/emulated/waiting.h"

namespace nccl_ha::emulated {
namespace {

const Clock::time_point process_start = Clock::now();

int number_in(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

Place& place() {
  static Place only{number_in("RANK", 0), number_in("WORLD_SIZE", 1)};
  return only;
}

void say(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::printf("[%.3f] rank %d: %s\n", since(process_start).count(), place().rank, text);
}

void die(const std::string& what) {
  say("%s", what.c_str());
  std::fflush(nullptr);
  _exit(1);
}

void need(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    die(std::string(call) + ": " + cudaGetErrorString(status));
  }
}

void need(ncclResult_t status, const char* call) {
  if (status != ncclSuccess && status != ncclInProgress) {
    die(std::string(call) + ": " + ncclGetErrorString(status) + ": " + ncclGetLastError(nullptr));
  }
}

Rendezvous::Rendezvous() {
  const char* host = std::getenv("MASTER_ADDR");
  const int port = number_in("MASTER_PORT", 29500);
  if (place().rank == 0) {
    listen_for_others(port);
  } else {
    dial(host != nullptr ? host : "127.0.0.1", port);
  }
}

Rendezvous::~Rendezvous() {
  for (const int peer : peers_) {
    close(peer);
  }
}

void Rendezvous::listen_for_others(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      listen(listener, 64) != 0) {
    die("rendezvous: port " + std::to_string(port) + " is taken");
  }
  for (int i = 1; i < place().ranks; ++i) {
    peers_.push_back(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  }
  close(listener);
}

void Rendezvous::dial(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    die("rendezvous: no such host: " + host);
  }
  const auto begin = Clock::now();
  while (since(begin) < std::chrono::seconds(30)) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
      peers_.push_back(fd);
      freeaddrinfo(found);
      return;
    }
    close(fd);
    give_way(std::chrono::milliseconds(20));
  }
  die("rendezvous: nobody listens");
}

void Rendezvous::share(char* bytes, size_t count, Others others) {
  for (const int peer : peers_) {
    for (size_t done = 0; done < count;) {
      const ssize_t moved = place().rank == 0 ? send(peer, bytes + done, count - done, MSG_NOSIGNAL)
                                              : recv(peer, bytes + done, count - done, 0);
      if (moved <= 0) {
        if (others == Others::some_dead && place().rank == 0) {
          break;
        }
        die("rendezvous: the other side is gone");
      }
      done += static_cast<size_t>(moved);
    }
  }
}

}  // namespace nccl_ha::emulated
