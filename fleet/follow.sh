# Wait until SESSION has ended here, ten seconds at most; print how it stands and its status. The
# name of the abstract socket is there as long as the process that measures (unix(7)).
turns=0
while :; do
    stands=gone
    grep -qs "@[^ ]*-fleet/$SESSION\$" /proc/net/unix && stands=measuring
    # Read after the socket: the end is written before the process goes.
    grep -qs '"state": "ended"' status.json && stands=ended
    [ $stands = measuring ] && [ $turns -lt 5 ] || break
    turns=$((turns + 1))
    sleep 2
done
echo "numalab=$stands"
[ $stands = gone ] && tail -n 1 said.txt >&2
cat status.json
