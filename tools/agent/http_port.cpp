#include "tools/agent/http_port.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "runtime/base/log.h"

namespace nccl_ha::tools {
namespace {

constexpr Duration request_time = std::chrono::seconds(5);
constexpr const char* end_of_request = "\r\n\r\n";

std::string http_answer(const char* status, const HttpAnswer& answer, bool body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
      "Content-Security-Policy: default-src 'none'; connect-src 'self'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\r\nReferrer-Policy: "
      "no-referrer\r\n\r\n{}",
      status, answer.type, answer.body.size(), body ? answer.body : "");
}

std::string http_refusal(const char* status) {
  return http_answer(status, {"text/plain; charset=utf-8", std::string(status) + "\n"});
}

bool same_text(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char one, char other) {
    return std::tolower(static_cast<unsigned char>(one)) ==
           std::tolower(static_cast<unsigned char>(other));
  });
}

}  // namespace

std::optional<std::string> http_header(const std::string& request, const std::string& name) {
  size_t at = request.find("\r\n");
  while (at != std::string::npos) {
    const size_t begin = at + 2;
    const size_t end = request.find("\r\n", begin);
    const std::string line = request.substr(begin, end == std::string::npos ? end : end - begin);
    const size_t colon = line.find(':');
    if (colon != std::string::npos && same_text(std::string_view(line).substr(0, colon), name)) {
      const size_t first = line.find_first_not_of(" \t", colon + 1);
      const size_t last = line.find_last_not_of(" \t");
      return first == std::string::npos ? std::string() : line.substr(first, last - first + 1);
    }
    at = end;
  }
  return std::nullopt;
}

bool names_an_address(const std::string& host) {
  std::string name = host;
  if (!name.empty() && name.front() == '[') {
    const size_t end = name.find(']');
    return end != std::string::npos && parse_address(name.substr(1, end - 1)).ok();
  }
  name = name.substr(0, name.find(':'));
  return same_text(name, "localhost") || parse_address(name).ok();
}

HttpPort::HttpPort(int listener, const SocketPoint& at, Pages pages)
    : listener_(listener), loopback_(at.address.loopback()), pages_(std::move(pages)) {
  timer_.bind([](void* self) { static_cast<HttpPort*>(self)->end_slow_ones(); }, this);
}

HttpPort::~HttpPort() {
  if (listener_ >= 0) {
    close(listener_);
  }
}

void HttpPort::start(Context& context) {
  context_ = &context;
  auto acceptor = context.streams().adopt_listener(std::exchange(listener_, -1), this);
  if (!acceptor) {
    NHA_LOG_ERROR("agent: no page is served: {}", acceptor.error().message());
    return;
  }
  acceptor_ = std::move(*acceptor);
}

void HttpPort::stop() {
  acceptor_.reset();
  clients_.clear();
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
}

void HttpPort::on_accept(int fd) {
  if (clients_.size() >= clients_max) {
    clients_.pop_front();  // the one that has waited longest has still asked for nothing
  }
  auto stream = context_->streams().adopt_fd(fd, this);
  if (!stream) {
    return;
  }
  clients_.push_back({std::move(*stream), {}, context_->now()});
  if (!timer_.armed()) {
    context_->timers().arm(timer_, context_->now() + request_time);
  }
}

void HttpPort::on_acceptor_error(const Error& error) {
  NHA_LOG_WARN_LIMITED("agent: accepting browsers fails: {}", error.message());
}

HttpPort::Place HttpPort::find(const Stream& stream) {
  return std::find_if(clients_.begin(), clients_.end(),
                      [&](const Client& client) { return client.stream.get() == &stream; });
}

void HttpPort::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  const Place client = find(stream);
  client->request.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (client->request.find(end_of_request) != std::string::npos) {
    finish(client, answer(client->request));
  } else if (client->request.size() > request_max) {
    finish(client, http_refusal("431 Request Header Fields Too Large"));
  }
}

void HttpPort::on_stream_closed(Stream& stream, const Error& error) {
  (void)error;
  clients_.erase(find(stream));
}

std::string HttpPort::answer(const std::string& request) const {
  const std::string line = request.substr(0, request.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = first == std::string::npos ? first : line.find(' ', first + 1);
  if (second == std::string::npos || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return http_refusal("400 Bad Request");
  }
  const std::string method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") {
    return http_refusal("405 Method Not Allowed");
  }
  const auto host = http_header(request, "Host");
  if (loopback_ && (!host || !names_an_address(*host))) {
    return http_refusal("403 Forbidden");
  }
  std::string path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  const auto page = pages_(path);
  return page ? http_answer("200 OK", *page, method == "GET") : http_refusal("404 Not Found");
}

void HttpPort::finish(Place client, const std::string& answer) {
  static_cast<void>(client->stream->write(std::as_bytes(std::span(answer))));
  client->stream->shutdown_then_close();
  clients_.erase(client);
}

void HttpPort::end_slow_ones() {
  const Instant now = context_->now();
  std::erase_if(clients_, [&](const Client& client) { return now - client.since >= request_time; });
  if (!clients_.empty()) {
    context_->timers().arm(timer_, now + request_time);
  }
}

}  // namespace nccl_ha::tools
