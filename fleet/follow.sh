# Wait until SESSION has ended here, ten seconds at most; print how it stands and its status. The
# name of the abstract socket is there as long as the process that measures (unix(7)).
measuring() { grep -qs "@[^ ]*-fleet/$SESSION\$" /proc/net/unix; }
# That process holds this lock too: who waits for it uses no CPU time of the host under test.
flock -s -w 10 -E 9 working true 2>/dev/null
[ $? = 9 ] || { measuring && sleep 2; } # no flock here, or a file system without locks
stands=gone
measuring && stands=measuring
# Read after the socket: the end is written before the process goes.
grep -qs '"state": "ended"' status.json && stands=ended
echo "numalab=$stands"
[ $stands = gone ] && tail -n 1 said.txt >&2
cat status.json
