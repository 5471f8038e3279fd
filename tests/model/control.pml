/*
 * The control lane and its end: two sides, a stream that is lost and made anew, a path that fails and is
 * replaced. Each side says up to MESSAGES things; either may close at any time.
 *
 * A message is kept until the peer has confirmed it. A way (stream or path) carries a run of messages without
 * gaps, beginning with what was unconfirmed when the way came up; what is under way is lost with it. The peer
 * takes each number once and in order. So a way is a place in the log of either side; what it carries besides,
 * the confirmation, is what the other side had taken when it was written.
 *
 * Who closes says so as its last message, and lingers until that is confirmed; who is told that the peer closes
 * says nothing more, and lingers until its confirmation has left over a way that works. Both linger no longer
 * than a while, which is long compared with what a way that works needs: it passes here only when none does,
 * and when nobody has anything left to do.
 *
 * Checked in every state: numbers are taken once and in order, and nothing is confirmed that was not taken.
 * Checked at the end: what was said before the close has been taken, and the close itself, unless no way worked;
 * nobody waited for nothing while a way worked; everybody has ended (who is stuck is an invalid end state).
 *
 * MISTAKE=n plants a fault in the protocol; run.py lists them and sees to it that each is found.
 */
#ifndef MESSAGES
#define MESSAGES 1
#endif
#ifndef LOSSES
#define LOSSES 2 /* of ways */
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif

#define WITHOUT_LINGERING 1  /* the paths are failed as soon as the close is queued */
#define TAKEN_TWICE 2        /* numbers are not compared */
#define NOT_WRITTEN_ANEW 3   /* a new stream carries only what is said from then on */
#define BACKLOG_WITHHELD 4   /* the same of a path */
#define CONFIRMED_EARLY 5    /* one more than was taken */
#define GONE_AT_ONCE 6       /* who is told of the end confirms nothing */

#define STREAM 0
#define PATH 1
#define OTHER(s) (1 - (s))

bool up[2] = true; /* ways */
bool for_good[2];  /* it will not come back */
byte losses = LOSSES;

/* Of each side. */
byte said[2];      /* messages in the log; the last one is the close if it closes */
byte confirmed[2]; /* of those */
byte taken[2];     /* of the peer's */
bool closes[2];    /* has said so */
bool told[2];      /* has taken the peer's close */
bool gone[2];
bool excused[2];   /* the peer's confirmation of its close was lost with every way */
bool released[2];  /* its paths were failed */

/* Of each side and way: how much of the log was written there, and what of it has come out at the other end. */
byte written[4];
byte come[4];
/* Confirmations that are under way there: of so many, at most one that counts. */
byte confirms[4];
#define AT(s, w) ((s) * 2 + (w))
#define WORKS(s, w) (up[w] && !gone[s] && !(w == PATH && released[s]))
#define CARRIES(w) (WORKS(0, w) && WORKS(1, w))
/* Nobody but the sides themselves keeps them from hearing each other. */
#define COULD_CARRY ((up[STREAM] || up[PATH]) && !gone[0] && !gone[1])

#define OPEN(s) (!gone[s] && !closes[s] && !told[s])
#define HEARD(s) (confirmed[s] == said[s] || told[s])
#define LEFT(s, w) (confirms[AT(s, w)] == 0 || !CARRIES(w))

inline confirm_to(s) {
  /* Over every way: of what this side has taken. */
  if
  :: WORKS(s, STREAM) -> confirms[AT(s, STREAM)] = taken[s] + (MISTAKE == CONFIRMED_EARLY)
  :: else
  fi;
  if
  :: WORKS(s, PATH) -> confirms[AT(s, PATH)] = taken[s] + (MISTAKE == CONFIRMED_EARLY)
  :: else
  fi
}

/* What side s has written on way w arrives. */
inline arrive(s, w) {
  if
  :: come[AT(s, w)] < taken[OTHER(s)] && MISTAKE != TAKEN_TWICE -> come[AT(s, w)]++ /* seen */
  :: else ->
    assert(come[AT(s, w)] == taken[OTHER(s)]); /* once, and in order */
    come[AT(s, w)]++;
    taken[OTHER(s)]++;
    if
    :: closes[s] && come[AT(s, w)] == said[s] -> told[OTHER(s)] = true
    :: else
    fi
  fi;
  if
  :: told[OTHER(s)] && MISTAKE == GONE_AT_ONCE -> gone[OTHER(s)] = true
  :: else -> confirm_to(OTHER(s))
  fi
}

/* A confirmation of side s's arrives at the other one. */
inline hear_confirmation(s, w) {
  if
  :: confirms[AT(s, w)] > confirmed[OTHER(s)] ->
    confirmed[OTHER(s)] = confirms[AT(s, w)];
    assert(confirmed[OTHER(s)] <= said[OTHER(s)] && confirmed[OTHER(s)] <= taken[s])
  :: else
  fi;
  confirms[AT(s, w)] = 0
}

#define WRITE(s, w) CARRIES(w) && written[AT(s, w)] < said[s] -> written[AT(s, w)]++
#define TAKE(s, w) CARRIES(w) && come[AT(OTHER(s), w)] < written[AT(OTHER(s), w)] -> arrive(OTHER(s), w)
#define HEAR(s, w) CARRIES(w) && confirms[AT(OTHER(s), w)] != 0 -> hear_confirmation(OTHER(s), w)

proctype Side(byte s) {
  do
  :: gone[s] -> break
  :: atomic { OPEN(s) && said[s] < MESSAGES -> said[s]++ }
  /* The caller closes. */
  :: atomic { OPEN(s) ->
      closes[s] = true;
      said[s]++;
      released[s] = (MISTAKE == WITHOUT_LINGERING) }
  :: atomic { !gone[s] && WRITE(s, STREAM) }
  :: atomic { !gone[s] && WRITE(s, PATH) }
  :: atomic { !gone[s] && TAKE(s, STREAM) }
  :: atomic { !gone[s] && TAKE(s, PATH) }
  :: atomic { !gone[s] && HEAR(s, STREAM) }
  :: atomic { !gone[s] && HEAR(s, PATH) }
  /* The peer knows, and knows that this side does. */
  :: atomic { !gone[s] && (closes[s] || told[s]) && HEARD(s) &&
              (!told[s] || (LEFT(s, STREAM) && LEFT(s, PATH))) ->
      excused[OTHER(s)] = true;
      gone[s] = true }
  /* Its time is up. What it waited for was lost with every way, or is under way for nobody. */
  :: atomic { !gone[s] && (closes[s] || told[s]) && timeout ->
      assert(!COULD_CARRY);
      assert(!told[OTHER(s)] || excused[s]);
      excused[OTHER(s)] = true;
      gone[s] = true }
  od
}

/* What is under way is lost, and a new one begins with what is not confirmed. */
inline lose(w) {
  losses--;
  up[w] = false;
  confirms[AT(0, w)] = 0;
  confirms[AT(1, w)] = 0;
  if
  :: for_good[w] = true
  :: true
  fi
}

#define BEGINS(s) (forgets -> said[s] : confirmed[s])

inline make_anew(w) {
  bool forgets = (w == STREAM && MISTAKE == NOT_WRITTEN_ANEW) || (w == PATH && MISTAKE == BACKLOG_WITHHELD);
  up[w] = true;
  written[AT(0, w)] = BEGINS(0);
  written[AT(1, w)] = BEGINS(1);
  come[AT(0, w)] = BEGINS(0);
  come[AT(1, w)] = BEGINS(1);
  /* Whoever makes it says what it has taken, so that the other knows. */
  confirms[AT(0, w)] = taken[0];
  confirms[AT(1, w)] = taken[1]
}

proctype Network() {
end:
  do
  :: atomic { losses > 0 && up[STREAM] -> lose(STREAM) }
  :: atomic { losses > 0 && up[PATH] -> lose(PATH) }
  :: atomic { !up[STREAM] && !for_good[STREAM] && !gone[0] && !gone[1] -> make_anew(STREAM) }
  /* Not at the end: what failed then is not replaced. */
  :: atomic { !up[PATH] && !for_good[PATH] && OPEN(0) && OPEN(1) -> make_anew(PATH) }
  od
}

init {
  atomic {
    run Side(0);
    run Side(1);
    run Network()
  }
}
