# What a host has, as key=value lines: one round trip. Needs FOLDER, AGENT, PYTHON (may be empty),
# PROBES (architectures whose probe the agent carries), SERVER (yes where MySQL or MariaDB is to be
# measured) and TRIED (yes after an installation).
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
case $FOLDER in "~"/*) FOLDER=$HOME/${FOLDER#??} ;; esac
mkdir -p "$FOLDER" && cd "$FOLDER" || exit 1
echo "folder=$(pwd)"

old='' found=''
for name in $PYTHON python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
    path=$(command -v "$name") || continue
    version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || continue
    case $version in
        2.* | 3.[0-8]) old="$old $path is $version," ;;
        *) found=$path && echo "python=$path" && break ;;
    esac
done
echo "old_python=${old%,}"

missing=''
for tool in sysbench perf; do
    command -v $tool >/dev/null || missing="$missing $tool"
done
case " $PROBES " in
    *" $(uname -m) "*) ;;
    *)
        command -v cc >/dev/null || missing="$missing cc"
        [ -e /usr/include/stdio.h ] || missing="$missing headers"
        ;;
esac
if [ "$SERVER" = yes ]; then
    PATH=$PATH:/usr/libexec:/usr/local/libexec:/usr/local/mysql/bin
    command -v mysqld >/dev/null || command -v mariadbd >/dev/null || missing="$missing server"
fi
echo "missing=$missing"
# What could not be had is not asked for again at every run, but a day later.
[ "$TRIED" = yes ] && echo "$missing" >not-to-be-had
[ -n "$(find not-to-be-had -mmin -1440 2>/dev/null)" ] && echo "tried=$(cat not-to-be-had)"

if [ -z "$found" ] || [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] && echo root=yes
    sudo -n true 2>/dev/null && echo sudo=yes
    (
        . /etc/os-release 2>/dev/null
        echo "system=${ID:-} ${ID_LIKE:-}"
    )
    for manager in apt-get dnf yum; do
        command -v $manager >/dev/null && echo "manager=$manager" && break
    done
    echo "kernel=$(uname -r)"
fi
touch -c "$AGENT"
find . -maxdepth 1 -name 'numalab-*.pyz' -mtime +30 -delete
[ -e "$AGENT" ] && echo agent=yes
exit 0
