"""What agents and the controller say to each other, said once, here.

Every message is a JSON object behind its length (``channel.py``), over TCP. An agent dials the
address that the door file names (``RUN/controller/door.json``: ``address``, ``port``, ``epoch``,
``token``, ``lease_seconds``, ``tag``, ...), and both prove that they know its token without sending
it (``door.py``)::

    controller  {"nonce": N}
    agent       {"nonce": M, "proof": HMAC-SHA256(token, "agent N M")}
    controller  {"proof": HMAC-SHA256(token, "controller M N")}

Then the agent says ``hello``, hears ``init`` and answers with its ``slots``: it has joined.
From then on orders go out and news come in, in any order:

=========== ===================================================================================
order       with
=========== ===================================================================================
init        version, epoch, tag, lease_seconds, fenced (its leases hang on our beats), preload,
            slots (wanted, 0: all; null: we know them), lanes, interfaces (to meet on, the first
            that is there), scratch and layout (as the profile says), sample_seconds (0: tell no
            counters), keep {job: offset or null}: go on with these and tell their records from
            there on; all others end
beat        at: what the agent's own beat said; its leases hold until ``at + lease_seconds``
start       job, target, spec, log, lease (null: in the agent's scratch), watch, control, width,
            slots (names, of all ranks), meet [address, port, interface], ranks (of this host, see
            ``RankEnvironment``); carried: the controller's folders that came as cargo
cargo       path, data, last, checksum: a file of a coming job, see ``ferry.py``
code        root, code (checksum): ranks are to use the package that came below that root
stop        job, grace
peer_ended  job, code: a rank on another host ended
ask         job, wish: ``yield`` or ``stop``, for rank 0
forget      job: its end was heard
drop        job: end it at once, nobody wants to hear of it
bye         end everything and go
=========== ===================================================================================

=========== ===================================================================================
news        with (all: event, job or null, time)
=========== ===================================================================================
hello       version, code, host, life, pid, jobs [{the order without spec and environments, ranks
            [numbers], begun (seconds since the epoch), started, pids, first_offset}]
slots       slots [Slot], address, interface, ends_at (seconds since the epoch; null: never)
beat        at: the agent's monotonic time, every third of a lease
ready       import_seconds, threads
taken       somebody listens at the port of the job; nothing was started
started     pids of the ranks here
records     records (as they were written), offset (bytes of the file up to here)
rank_ended  rank, code: the first of its job here, which has ranks on other hosts
cargo       path, data, last, checksum: a file that the job wrote; without data: one it removed
ended       codes {rank: code}, signal_sent, first, error; repeated until ``forget``
zygote_lost code, error
counters    seconds, parts, rest, cards, devices, notes: what the host's counters say of
            the last seconds, see ``counters.CounterSample``; what could not be told is in the next
=========== ===================================================================================

Somebody who holds a further allocation dials the same door (``fleet/guests.py``). He says ``visit``
in place of ``hello``, and has agents started on his hosts when he is told to:

=========== ===================================================================================
order       with
=========== ===================================================================================
start       hosts: have an agent started on each of these, in place of any that was there
beat        at: what his own beat said
bye         why: he is not wanted
=========== ===================================================================================

=========== ===================================================================================
news        with
=========== ===================================================================================
visit       version, tag, allocation, hosts (ids, neighbours side by side)
beat        at: his monotonic time, every third of a lease
failed      host, reason: no agent is there
leaving     ends_at: his hosts are taken from us then, earlier than their agents know
=========== ===================================================================================
"""

BEATS = 3
"""Beats of an agent per lease time."""

FOLDER = "controller"
"""Folder of a run directory where controllers leave what is theirs."""

DOOR = "HYDRAGNN_HPO_DOOR"
"""Environment of an agent: path of the door file, or its content where files are not shared."""
