#include "relay/ticket_office.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"

namespace nccl_ha::relay {
namespace {

constexpr std::string_view purpose_id = "id of a ticket";
/// Until a node that was killed has ended its socket has the name.
constexpr Duration open_apart = std::chrono::milliseconds(100);

}  // namespace

NamedKey ticket_for(const TicketQuestion& question, const KeyRing& cluster, NodeId node,
                    uint32_t incarnation) {
  Ticket ticket;
  ticket.key = cluster.first();
  ticket.node = node;
  ticket.incarnation = incarnation;
  ticket.user = question.user;
  const HashKey& key = *cluster.find(ticket.key);
  WireWriter about;
  put_ticket(about, ticket);
  ticket.id = make_tag(key, purpose_id, about.bytes(), question.salt);
  return make_named_key(key, ticket);
}

void TicketOffice::start(Context& context) {
  context_ = &context;
  timer_.bind([](void* self) { static_cast<TicketOffice*>(self)->open(); }, this);
  open();
}

void TicketOffice::open() {
  const auto fd = open_ticket_office(options_.port);
  auto watch =
      fd ? context_->streams().watch_fd(*fd, this) : Result<std::unique_ptr<FdWatch>>(fd.error());
  if (watch) {
    fd_ = *fd;
    watch_ = std::move(*watch);
    return;
  }
  if (fd) {
    close_fd(*fd);
  }
  NHA_LOG_WARN_LIMITED("other processes of this host are not helped to reach hosts: {}",
                       watch.error().message());
  context_->timers().arm(timer_, context_->now() + open_apart);
}

void TicketOffice::on_readable(int fd) {
  std::optional<TicketQuestion> question;
  for (size_t i = 0; i < questions_per_turn && read_question(fd, question); ++i) {
    if (question) {
      answer(fd, *question);
    }
  }
}

void TicketOffice::answer(int fd, const TicketQuestion& question) {
  if (options_.user && *options_.user != question.user) {
    return;  // of another user's job
  }
  if (question.lends && options_.job) {
    options_.job->lend(question.user, *question.lends, context_->now());
    answer_question(fd, question, options_.job->of_user(question.user, options_.user.has_value()));
  } else if (!question.lends && options_.key) {
    const auto keys = options_.key->current();
    answer_question(fd, question, ticket_for(question, *keys, options_.node, options_.incarnation));
  }
}

void TicketOffice::stop() {
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
  watch_.reset();
  close_fd(std::exchange(fd_, -1));
}

}  // namespace nccl_ha::relay
