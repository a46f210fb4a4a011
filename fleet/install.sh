# Install packages by MANAGER, all at once or else one by one: a name that a release lacks must not
# cost the others. Of PACKAGES (separated by spaces) "first|second" means the first that can be had.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export DEBIAN_FRONTEND=noninteractive
case $MANAGER in
    apt-get)
        limits="-o Acquire::Retries=0 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=120"
        apt-get $limits update
        get() { apt-get $limits install -y --no-install-recommends "$@"; }
        ;;
    *) get() { $MANAGER install -y --setopt=timeout=20 --setopt=retries=1 "$@"; } ;;
esac
get $(for one in $PACKAGES; do echo "${one%%|*}"; done) && exit 0
for one in $PACKAGES; do
    for package in $(echo "$one" | tr '|' ' '); do
        get "$package" && break
    done
done
exit 0
