/*
 * Fence, ledger, replay, rebuild: two hosts, PATHS paths, TRANSFERS transfers of CHUNKS chunks.
 *
 * Modelled: data that arrives while its acknowledgement is lost; packets that are late, also after
 * the path was given up or came back; cables that fail in one direction; false alarms; a second
 * failure during recovery; clear-to-sends that are lost; a connection with one path only; a sender whose
 * device goes on sending what it had when the sender says that it is down. Control messages are reliable
 * and ordered, which control.pml shows.
 *
 * Checked in every state: nothing is written into a buffer that was given back; a transfer is done
 * at the receiver only when all of it is in memory, and at the sender only when the receiver has it;
 * no chunk arrives twice. Checked at the end: everything is done on both sides (whoever is stuck
 * before that is an invalid end state). Cables that fail come back, so the end can be reached.
 *
 * FAILBACK=0: any path that is open may take any chunk, which covers every way of choosing among paths
 * that need no preparation. FAILBACK=1: path 0 is the primary and path 1 its shadow on another device;
 * traffic moves to the shadow when the primary fails and goes back at any time after it is open again.
 * FAILBACK=2: it goes back only when it must. With both, a chunk goes in two writes, of which the second
 * one completes it, and the shadow needs a key that the receiver tells only after it has seen the primary
 * fail, for one queue pair of the shadow. Clear-to-sends then take one path until that fails.
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
#ifndef FAILBACK
#define FAILBACK 0
#endif
#ifndef PATHS
#define PATHS 2 /* or 1, without FAILBACK */
#endif
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
#define BACK_WITHIN_A_CHUNK 10
#define TAKEN_ALONG 11
#define OLD_KEY 12
#define NEVER_GIVES_WAY 13
#define NOBODY_GOES_BACK 14 /* no mistake: says that what must be possible is not */

mtype = { path_down, suspect, path_fenced, rebuild, rebuilt, ready };

/* What is on its way over a path: epoch, piece. Clear-to-sends go the other way: epoch, transfer. */
#if FAILBACK
chan data[PATHS] = [2 * PIECES] of { byte, byte, bool, byte };
chan clear[PATHS] = [TRANSFERS] of { byte, byte, byte };
#else
chan data[PATHS] = [PIECES] of { byte, byte };
chan clear[PATHS] = [TRANSFERS] of { byte, byte };
#endif
chan acks[PATHS] = [PIECES] of { byte, byte };
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
#if FAILBACK
#define KEY_FOR(epoch) ((epoch) + 1)
byte serving;         /* the path that takes new chunks */
byte begun;           /* the piece after the one whose first part was posted there; 0: none */
byte keys[TRANSFERS]; /* for the shadow; 0: not told */
#endif

/* The receiver. */
chan completions[PATHS] = [PIECES] of { byte, byte };
bool r_open[PATHS] = true;
bool r_ready[PATHS] = true; /* the sender's side of the path is open as well */
bool told[PATHS];
byte r_epoch[PATHS];
bool written[PIECES];
bool arrived[PIECES];
#if FAILBACK
bool first[PIECES]; /* that part is in memory */
bool gap[PATHS];    /* something was lost: nothing behind it is taken */
bool keys_wanted;
byte via;           /* the path of the clear-to-sends */
#endif
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
#if FAILBACK
  assert(first[i]);
#endif
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
#if FAILBACK
  byte key;
  bool last;
end:
  do
  :: atomic { nempty(data[p]) && nfull(acks[p]) && nfull(completions[p]) ->
      data[p] ? e, i, last, key;
      if
      :: forth[p] && r_open[p] && e == r_epoch[p] && !gap[p] ->
        assert(!given_back[i / CHUNKS]);
        assert(p == 0 || key == KEY_FOR(r_epoch[p])); /* another one opens nothing */
        if
        :: last ->
          written[i] = true;
          completions[p] ! e, i;
          acks[p] ! e, i
        :: else -> first[i] = true
        fi
      :: e != r_epoch[p] || !r_open[p] || gap[p]
      :: !forth[p] && r_open[p] && e == r_epoch[p] -> broken[p] = true; gap[p] = true
      fi;
      e = 0; i = 0; last = false; key = 0 }
#else
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
#endif
  :: atomic { nempty(acks[p]) ->
      acks[p] ? e, i;
      if
      :: back[p] && s_open[p] && e == s_epoch[p] -> take_ack(i)
      :: e != s_epoch[p] || !s_open[p]
      :: !back[p] && s_open[p] && e == s_epoch[p] -> broken[p] = true
      fi;
      e = 0; i = 0 }
  :: atomic { nempty(clear[p]) ->
#if FAILBACK
      clear[p] ? e, i, key;
#else
      clear[p] ? e, i;
#endif
      if
      :: back[p] && s_open[p] && e == s_epoch[p] ->
        cts[i] = true;
#if FAILBACK
        keys[i] = key
#endif
      :: e != s_epoch[p] || !s_open[p]
      :: !back[p] && s_open[p] && e == s_epoch[p] -> broken[p] = true
      fi;
#if FAILBACK
      key = 0;
#endif
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
  :: atomic { !forth[0] || !back[0] -> forth[0] = true; back[0] = true }
#if PATHS > 1
  :: atomic { faults > 0 && forth[1] && back[1] ->
      faults--;
      forth[1] = false; back[1] = false }
  :: atomic { !forth[1] || !back[1] -> forth[1] = true; back[1] = true }
#endif
  od
}

inline give_up(p) {
  s_open[p] = (MISTAKE == SENDER_OPEN);
  waiting[p] = 1;
  to_receiver ! path_down, p, s_epoch[p];
#if FAILBACK
  if
  :: begun != 0 && piece[begun - 1] == ON(p) -> begun = 0 /* goes with the others of this path */
  :: else
  fi;
#endif
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

#if FAILBACK
/* The first part of a piece, or the second one of that which was begun. */
inline post(i) {
  data[serving] ! s_epoch[serving], i, (begun == i + 1), keys[i / CHUNKS];
  piece[i] = ON(serving);
  begun = (begun == i + 1 -> 0 : i + 1)
}

#define HAS_KEY(t) (serving == 0 || keys[t] == KEY_FOR(s_epoch[1]) || (MISTAKE == OLD_KEY && keys[t] != 0))
#define MAY_POST(i) (s_open[serving] && nfull(data[serving]) && \
                     (begun == i + 1 || (begun == 0 && cts[(i) / CHUNKS] && piece[i] == IDLE && HAS_KEY((i) / CHUNKS))))
#define LACKS_KEY(i) (cts[(i) / CHUNKS] && piece[i] == IDLE && !HAS_KEY((i) / CHUNKS))
#define BETWEEN (begun == 0 || MISTAKE == BACK_WITHIN_A_CHUNK)
#elif PATHS == 1
inline post(i) {
  data[0] ! s_epoch[0], i;
  piece[i] = ON(0)
}

#define MAY_POST(i) (cts[(i) / CHUNKS] && piece[i] == IDLE && s_open[0] && nfull(data[0]))
#else
inline post(i) {
  if
  :: s_open[0] && nfull(data[0]) -> data[0] ! s_epoch[0], i; piece[i] = ON(0)
  :: s_open[1] && nfull(data[1]) -> data[1] ! s_epoch[1], i; piece[i] = ON(1)
  fi
}

#define MAY_POST(i) (cts[(i) / CHUNKS] && piece[i] == IDLE && \
                     ((s_open[0] && nfull(data[0])) || (s_open[1] && nfull(data[1]))))
#endif
#define SUSPECTS(p) (s_open[p] && waiting[p] == 0 && nfull(to_receiver) && \
                   (broken[p] || !forth[p] || !back[p] || alarms > 0))
#define WRONGLY(p) (!broken[p] && forth[p] && back[p])

proctype Sender() {
  byte p, e, k;
  do
  :: all_acked == TRANSFERS && all_given_back == TRANSFERS -> break
  :: atomic { MAY_POST(0) -> post(0) }
#if TRANSFERS * CHUNKS > 1
  :: atomic { MAY_POST(1) -> post(1) }
#endif
#if FAILBACK
  :: atomic { serving == 0 && !s_open[0] && s_open[1] && begun == 0 -> serving = 1 }
  :: atomic { serving == 1 && !s_open[1] && s_open[0] && begun == 0 -> serving = 0 }
  /* The receiver saw the primary come back before it saw that the shadow was needed: no key will come. */
  :: atomic { serving == 1 && s_open[0] && begun == 0 && MISTAKE != NEVER_GIVES_WAY &&
              (LACKS_KEY(0) || LACKS_KEY(PIECES - 1)) -> serving = 0 }
#endif
#if FAILBACK == 1
  /* The primary has worked for long enough. What the shadow has stays with it. */
  :: atomic { serving == 1 && s_open[0] && s_open[1] && BETWEEN ->
      assert(MISTAKE != NOBODY_GOES_BACK || (piece[0] != ON(1) && piece[PIECES - 1] != ON(1)));
      serving = 0;
      if
      :: MISTAKE == TAKEN_ALONG ->
        k = 0;
        do
        :: k < PIECES ->
          if
          :: piece[k] == ON(1) -> piece[k] = IDLE
          :: else
          fi;
          k++
        :: else -> break
        od;
        k = 0
      :: else
      fi }
#endif
#if TRANSFERS * CHUNKS > 2
  :: atomic { MAY_POST(2) -> post(2) }
  :: atomic { MAY_POST(3) -> post(3) }
#endif
  /* A heartbeat is missing, work takes too long, or the device says so; perhaps wrongly. */
  :: atomic { SUSPECTS(0) ->
      if
      :: WRONGLY(0) -> alarms--
      :: else
      fi;
      give_up(0) }
#if PATHS > 1
  :: atomic { SUSPECTS(1) ->
      if
      :: WRONGLY(1) -> alarms--
      :: else
      fi;
      give_up(1) }
#endif
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
#if PATHS > 1
  :: atomic { waiting[1] == 2 && forth[1] && back[1] && nfull(to_receiver) ->
      waiting[1] = 3; to_receiver ! rebuild, 1, s_epoch[1] + 1 }
#endif
  :: atomic { to_sender ? [rebuilt, _, _] && nfull(to_receiver) ->
      to_sender ? rebuilt, p, e;
      s_epoch[p] = e;
      s_open[p] = true;
      waiting[p] = 0;
      to_receiver ! ready, p, e;
      p = 0; e = 0 }
  od
}

#if FAILBACK
#define SHADOW_KEY (keys_wanted -> KEY_FOR(r_epoch[1]) : 0)
#define CAN_ANNOUNCE (r_ready[via] && nfull(clear[via]))
inline announce(t) {
  clear[via] ! r_epoch[via], t, SHADOW_KEY
}
#elif PATHS == 1
#define CAN_ANNOUNCE (r_ready[0] && nfull(clear[0]))
inline announce(t) {
  clear[0] ! r_epoch[0], t
}
#else
#define CAN_ANNOUNCE ((r_ready[0] && nfull(clear[0])) || (r_ready[1] && nfull(clear[1])))
inline announce(t) {
  if
  :: r_ready[0] && nfull(clear[0]) -> clear[0] ! r_epoch[0], t
  :: r_ready[1] && nfull(clear[1]) -> clear[1] ! r_epoch[1], t
  fi
}
#endif

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
#if FAILBACK
  /* The sender has stopped there, so nothing old is written over what is announced anew. */
  :: atomic { !r_ready[via] && r_ready[1 - via] -> via = 1 - via; again = posted }
  /* Not before: memory would be registered with the other device for nothing. */
  :: atomic { !keys_wanted && !r_ready[0] && r_ready[1] -> keys_wanted = true; again = posted }
#endif
  :: atomic { nempty(completions[0]) -> completions[0] ? e, i; complete(i); e = 0; i = 0 }
#if PATHS > 1
  :: atomic { nempty(completions[1]) -> completions[1] ? e, i; complete(i); e = 0; i = 0 }
#endif
  /* The receiver has its own suspicions; the sender decides. */
  :: atomic { SUSPECTS(0) -> told[0] = true; to_sender ! suspect, 0, r_epoch[0] }
#if PATHS > 1
  :: atomic { SUSPECTS(1) -> told[1] = true; to_sender ! suspect, 1, r_epoch[1] }
#endif
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
#if FAILBACK
      gap[p] = false;
#endif
      to_sender ! rebuilt, p, e;
      p = 0; e = 0 }
  :: atomic { to_receiver ? [ready, _, _] ->
      to_receiver ? ready, p, e;
      if
      :: r_open[p] && e == r_epoch[p] ->
        r_ready[p] = true;
#if FAILBACK
        if
        :: p == 1 && keys_wanted -> again = posted
        :: else
        fi
#endif
      :: else /* given up again meanwhile */
      fi;
      p = 0; e = 0 }
  od
}

init {
  atomic {
    run Network(0);
#if PATHS > 1
    run Network(1);
#endif
    run Faults();
    run Sender();
    run Receiver()
  }
}
