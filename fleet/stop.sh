# Stop what measures for SESSION here, in order: what was measured stays.
measuring() { grep -qs "@[^ ]*-fleet/$SESSION\$" /proc/net/unix; }
measuring || { echo "nothing is being measured"; exit 0; }
kill -INT "$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' status.json)" || exit 1
turns=0
while measuring; do
    turns=$((turns + 1))
    [ $turns -lt 60 ] || { echo "it has not stopped within a minute" >&2; exit 1; }
    sleep 1
done
echo stopped
