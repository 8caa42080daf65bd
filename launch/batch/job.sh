
# Told shortly before the end (USR1), or when the job is taken away (TERM), 'run' lets trials leave
# checkpoints and ends with code 75. The shell itself must not die of these signals.
asked=0
running=
drain() {
    asked=$((asked + 1))
    [ -z "$running" ] || kill -USR1 "$running" 2>/dev/null
}
trap drain USR1 TERM

# What ends before 'batch begin' is on record, too: a module, a Python or a folder that is not there.
{{job}}
facts={{run}}/jobs/$job
fail() {
    code=$?
    [ -e "$facts.began.json" ] || [ -e "$facts.ended.json" ] ||
        printf '{"time": %s, "code": %s, "said": "failed before '"'run'"' began, with exit code %s"}\n' \
            "$(date +%s)" "$code" "$code" >"$facts.ended.json"
}
trap fail EXIT

# Schedulers are called with LC_ALL=C and hand it on: this is what it was.
export LC_ALL={{locale}}

# Modules and environment of the machine.
{{modules}}
{{environment}}

# Python and the package of whoever submitted; the controller brings software to the other hosts.
program=({{program}})

cd {{folder}} || exit

# From this 'run', agents and ranks know that they are in a job of a chain.
export HYDRAGNN_HPO_BATCH_JOB="{{number}}"

# TERM may go to every process of the job: what keeps the chain alive ignores it.
batch() (
    trap '' TERM
    exec "${program[@]}" batch "$@"
)

# Notes that this job runs, and queues the next one behind it, however this one will end.
batch begin {{run}} --script {{script}} --jobs {{jobs}} || exit
trap - EXIT

code=75
if [ "$asked" -eq 0 ]; then
    "${program[@]}" {{command}} </dev/null &
    running=$!
    [ "$asked" -eq 0 ] || kill -USR1 "$running" 2>/dev/null
    # A signal ends 'wait' before the program has ended: wait until none came in between.
    until
        before=$asked
        wait "$running"
        code=$?
        [ "$asked" -eq "$before" ]
    do :; done
fi

# Notes how it ended, and takes the next job back where there is nothing left to do or to gain.
batch end {{run}} --code "$code"
