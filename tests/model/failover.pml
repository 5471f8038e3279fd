/*
 * Fence, ledger, replay, rebuild: two hosts, PATHS paths, TRANSFERS transfers of CHUNKS chunks.
 *
 * Modelled: data that arrives while its acknowledgement is lost; packets that are late, also after
 * the path was given up or came back; cables that fail in one direction; false alarms; a second
 * failure during recovery; clear-to-sends that are lost. The control stream is reliable and ordered.
 *
 * Checked in every state: nothing is written into a buffer that was given back; a transfer is done
 * at the receiver only when all of it is in memory, and at the sender only when the receiver has it;
 * no chunk arrives twice. Checked at the end: everything is done on both sides (whoever is stuck
 * before that is an invalid end state). Cables that fail come back, so the end can be reached.
 *
 * MISTAKE=n plants a fault in the protocol; run.py lists them and sees to it that each is found.
 */
#ifndef TRANSFERS
#define TRANSFERS 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef ALARMS
#define ALARMS 1
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif
#define PATHS 2
#define PIECES (TRANSFERS * CHUNKS)
#define PIECE(t, c) ((t) * CHUNKS + (c))

#define REPORT_BEFORE_FENCE 1
#define COUNTER 2
#define REPLAY_UNASKED 3
#define NO_EPOCH 4
#define NO_DRAIN 5
#define CTS_ONCE 6
#define OLD_REPORT 7
#define SENDER_OPEN 8
#define EARLY_USE 9

mtype = { path_down, suspect, path_fenced, rebuild, rebuilt, ready };

/* What is on its way over a path: epoch, piece. Clear-to-sends go the other way: epoch, transfer. */
chan data[PATHS] = [PIECES] of { byte, byte };
chan acks[PATHS] = [PIECES] of { byte, byte };
chan clear[PATHS] = [TRANSFERS] of { byte, byte };
chan to_receiver = [4] of { mtype, byte, byte };
chan to_sender = [4] of { mtype, byte, byte };
bool forth[PATHS] = true;
bool back[PATHS] = true;
/* A queue pair repeats what gets lost, until it gives up: then somebody sees an error. */
bool broken[PATHS];
byte faults = FAULTS;
byte alarms = ALARMS;

/* The sender. */
#define IDLE 0
#define ON(p) ((p) + 1)
#define ACKED 3
byte piece[PIECES];
bool cts[TRANSFERS];
bool s_open[PATHS] = true;
byte s_epoch[PATHS];
byte waiting[PATHS]; /* 1: for the report, 2: fenced, 3: for the new queue pair */

/* The receiver. */
chan completions[PATHS] = [PIECES] of { byte, byte };
bool r_open[PATHS] = true;
bool r_ready[PATHS] = true; /* the sender's side of the path is open as well */
bool told[PATHS];
byte r_epoch[PATHS];
bool written[PIECES];
bool arrived[PIECES];
bool given_back[TRANSFERS];
byte posted;
byte counted;
bool report[PATHS * PIECES]; /* travels with path_fenced */

#define ALL_ACKED(t) (piece[PIECE(t, 0)] == ACKED && piece[PIECE(t, CHUNKS - 1)] == ACKED)
#define ALL_ARRIVED(t) (arrived[PIECE(t, 0)] && arrived[PIECE(t, CHUNKS - 1)])
#define ALL_WRITTEN(t) (written[PIECE(t, 0)] && written[PIECE(t, CHUNKS - 1)])

byte all_acked;
byte all_given_back;

inline take_ack(i) {
  if
  :: piece[i] != ACKED ->
    piece[i] = ACKED;
    assert(written[i]); /* done at the sender: the receiver has it */
    if
    :: ALL_ACKED(i / CHUNKS) -> all_acked++
    :: else
    fi
  :: else
  fi
}

inline complete(i) {
  if
  :: MISTAKE == COUNTER ->
    arrived[i] = true;
    counted++;
    if
    :: counted % CHUNKS == 0 ->
      assert(ALL_WRITTEN(counted / CHUNKS - 1));
      given_back[counted / CHUNKS - 1] = true;
      all_given_back++
    :: else
    fi
  :: else ->
    assert(!arrived[i]);
    arrived[i] = true;
    if
    :: ALL_ARRIVED(i / CHUNKS) ->
      assert(ALL_WRITTEN(i / CHUNKS));
      given_back[i / CHUNKS] = true;
      all_given_back++
    :: else
    fi
  fi
}

/* One path's cable and the two devices at its ends. */
proctype Network(byte p) {
  byte e, i;
end:
  do
  :: atomic { nempty(data[p]) && nfull(acks[p]) && nfull(completions[p]) ->
      data[p] ? e, i;
      if
      :: forth[p] && r_open[p] && (e == r_epoch[p] || MISTAKE == NO_EPOCH) ->
        assert(!given_back[i / CHUNKS]);
        written[i] = true;
        completions[p] ! e, i;
        acks[p] ! e, i
      :: e != r_epoch[p] || !r_open[p] /* for a queue pair that is gone */
      :: !forth[p] && r_open[p] && e == r_epoch[p] -> broken[p] = true
      fi;
      e = 0; i = 0 }
  :: atomic { nempty(acks[p]) ->
      acks[p] ? e, i;
      if
      :: back[p] && s_open[p] && e == s_epoch[p] -> take_ack(i)
      :: e != s_epoch[p] || !s_open[p]
      :: !back[p] && s_open[p] && e == s_epoch[p] -> broken[p] = true
      fi;
      e = 0; i = 0 }
  :: atomic { nempty(clear[p]) ->
      clear[p] ? e, i;
      if
      :: back[p] && s_open[p] && e == s_epoch[p] -> cts[i] = true
      :: e != s_epoch[p] || !s_open[p]
      :: !back[p] && s_open[p] && e == s_epoch[p] -> broken[p] = true
      fi;
      e = 0; i = 0 }
  od
}

/* Pulls cables and plugs them in again. */
proctype Faults() {
end:
  do
  :: atomic { faults > 0 && forth[0] && back[0] ->
      faults--;
      if
      :: forth[0] = false
      :: back[0] = false
      :: forth[0] = false; back[0] = false
      fi }
  :: atomic { faults > 0 && forth[1] && back[1] ->
      faults--;
      forth[1] = false; back[1] = false }
  :: atomic { !forth[0] || !back[0] -> forth[0] = true; back[0] = true }
  :: atomic { !forth[1] || !back[1] -> forth[1] = true; back[1] = true }
  od
}

inline give_up(p) {
  s_open[p] = (MISTAKE == SENDER_OPEN);
  waiting[p] = 1;
  to_receiver ! path_down, p, s_epoch[p];
  if
  :: MISTAKE == REPLAY_UNASKED ->
    k = 0;
    do
    :: k < PIECES ->
      if
      :: piece[k] == ON(p) -> piece[k] = IDLE
      :: else
      fi;
      k++
    :: else -> break
    od;
    k = 0
  :: else
  fi
}

inline post(i) {
  if
  :: s_open[0] && nfull(data[0]) -> data[0] ! s_epoch[0], i; piece[i] = ON(0)
  :: s_open[1] && nfull(data[1]) -> data[1] ! s_epoch[1], i; piece[i] = ON(1)
  fi
}

#define MAY_POST(i) (cts[(i) / CHUNKS] && piece[i] == IDLE && \
                     ((s_open[0] && nfull(data[0])) || (s_open[1] && nfull(data[1]))))
#define DOUBTS(p) (s_open[p] && waiting[p] == 0 && nfull(to_receiver) && \
                   (broken[p] || !forth[p] || !back[p] || alarms > 0))
#define WRONGLY(p) (!broken[p] && forth[p] && back[p])

proctype Sender() {
  byte p, e, k;
  do
  :: all_acked == TRANSFERS && all_given_back == TRANSFERS -> break
  :: atomic { MAY_POST(0) -> post(0) }
  :: atomic { MAY_POST(1) -> post(1) }
#if PIECES > 2
  :: atomic { MAY_POST(2) -> post(2) }
  :: atomic { MAY_POST(3) -> post(3) }
#endif
  /* A heartbeat is missing, work takes too long, or the device says so; perhaps wrongly. */
  :: atomic { DOUBTS(0) ->
      if
      :: WRONGLY(0) -> alarms--
      :: else
      fi;
      give_up(0) }
  :: atomic { DOUBTS(1) ->
      if
      :: WRONGLY(1) -> alarms--
      :: else
      fi;
      give_up(1) }
  :: atomic { to_sender ? [suspect, _, _] && nfull(to_receiver) ->
      to_sender ? suspect, p, e;
      if
      :: e == s_epoch[p] && waiting[p] == 0 -> give_up(p)
      :: else /* known, or about a queue pair that is gone */
      fi;
      p = 0; e = 0 }
  /* What the receiver has counts as acknowledged; the rest is sent again, and only that. */
  :: atomic { to_sender ? [path_fenced, _, _] ->
      to_sender ? path_fenced, p, e;
      if
      :: waiting[p] == 1 && e == s_epoch[p] ->
        k = 0;
        do
        :: k < PIECES ->
          if
          :: piece[k] == ON(p) && report[p * PIECES + k] -> take_ack(k)
          :: piece[k] == ON(p) && !report[p * PIECES + k] -> piece[k] = IDLE
          :: else
          fi;
          k++
        :: else -> break
        od;
        waiting[p] = 2
      :: else
      fi;
      p = 0; e = 0; k = 0 }
  /* A new queue pair each, as soon as packets get through again. */
  :: atomic { waiting[0] == 2 && forth[0] && back[0] && nfull(to_receiver) ->
      waiting[0] = 3; to_receiver ! rebuild, 0, s_epoch[0] + 1 }
  :: atomic { waiting[1] == 2 && forth[1] && back[1] && nfull(to_receiver) ->
      waiting[1] = 3; to_receiver ! rebuild, 1, s_epoch[1] + 1 }
  :: atomic { to_sender ? [rebuilt, _, _] && nfull(to_receiver) ->
      to_sender ? rebuilt, p, e;
      s_epoch[p] = e;
      s_open[p] = true;
      waiting[p] = 0;
      to_receiver ! ready, p, e;
      p = 0; e = 0 }
  od
}

inline announce(t) {
  if
  :: r_ready[0] && nfull(clear[0]) -> clear[0] ! r_epoch[0], t
  :: r_ready[1] && nfull(clear[1]) -> clear[1] ! r_epoch[1], t
  fi
}

/* Everything that came before the fence is looked at before the report is written. */
inline drain(p) {
  do
  :: nempty(completions[p]) -> completions[p] ? e, i; complete(i)
  :: empty(completions[p]) -> break
  od
}

inline write_report(p) {
  i = 0;
  do
  :: i < PIECES ->
    report[p * PIECES + i] = (MISTAKE == OLD_REPORT -> false : arrived[i]);
    i++
  :: else -> break
  od;
  i = 0
}

#define CAN_ANNOUNCE ((r_ready[0] && nfull(clear[0])) || (r_ready[1] && nfull(clear[1])))
#define SUSPECTS(p) (r_ready[p] && (broken[p] || !back[p]) && !told[p] && nfull(to_sender))

proctype Receiver() {
  byte p, e, i, again;
  do
  :: all_acked == TRANSFERS && all_given_back == TRANSFERS -> break
  :: atomic { posted < TRANSFERS && CAN_ANNOUNCE -> announce(posted); posted++ }
  :: atomic { again > 0 && CAN_ANNOUNCE ->
      again--;
      if
      :: !given_back[again] -> announce(again)
      :: else
      fi }
  :: atomic { nempty(completions[0]) -> completions[0] ? e, i; complete(i); e = 0; i = 0 }
  :: atomic { nempty(completions[1]) -> completions[1] ? e, i; complete(i); e = 0; i = 0 }
  /* The receiver has its own doubts; the sender decides. */
  :: atomic { SUSPECTS(0) -> told[0] = true; to_sender ! suspect, 0, r_epoch[0] }
  :: atomic { SUSPECTS(1) -> told[1] = true; to_sender ! suspect, 1, r_epoch[1] }
  :: atomic { to_receiver ? [path_down, _, _] && nfull(to_sender) ->
      to_receiver ? path_down, p, e;
      if
      :: MISTAKE == REPORT_BEFORE_FENCE -> drain(p); write_report(p)
      :: else -> r_open[p] = false; r_ready[p] = false
      fi };
    atomic {
      if
      :: MISTAKE == REPORT_BEFORE_FENCE -> r_open[p] = false; r_ready[p] = false
      :: MISTAKE == NO_DRAIN -> write_report(p)
      :: else -> drain(p); write_report(p)
      fi;
      to_sender ! path_fenced, p, r_epoch[p];
      /* A clear-to-send may have died with the path. */
      if
      :: MISTAKE != CTS_ONCE -> again = posted
      :: else
      fi;
      p = 0; e = 0; i = 0 }
  :: atomic { to_receiver ? [rebuild, _, _] && nfull(to_sender) ->
      to_receiver ? rebuild, p, e;
      r_epoch[p] = e;
      r_open[p] = true;
      r_ready[p] = (MISTAKE == EARLY_USE);
      told[p] = false;
      broken[p] = false;
      to_sender ! rebuilt, p, e;
      p = 0; e = 0 }
  :: atomic { to_receiver ? [ready, _, _] ->
      to_receiver ? ready, p, e;
      if
      :: r_open[p] && e == r_epoch[p] -> r_ready[p] = true
      :: else /* given up again meanwhile */
      fi;
      p = 0; e = 0 }
  od
}

init {
  atomic {
    run Network(0);
    run Network(1);
    run Faults();
    run Sender();
    run Receiver()
  }
}
