# Sourced by scripts/test: what some tests start beside Headrace. apt packages, because pip has none of them.

have_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
have_redis() { command -v redis-server || command -v valkey-server; }
have_nginx() { command -v nginx || [ -x /usr/sbin/nginx ]; }

# Sets $missing to the packages, and says for each what its absence skips.
find_missing_services() {
    missing=
    have_chromium >/dev/null 2>&1 || missing="$missing chromium"
    have_redis >/dev/null 2>&1 || missing="$missing redis-server"
    have_nginx >/dev/null 2>&1 || missing="$missing nginx"
}

say_what_is_skipped() { # packages
    for package in "$@"; do
        case $package in
        chromium) echo "Chromium is missing: the page's tests are skipped." ;;
        redis-server) echo "Redis is missing: the tests of several instances are skipped." ;;
        nginx) echo "nginx is missing: the tests of what stands in front are skipped." ;;
        esac
    done
    echo "--with-services would run: apt-get install $*"
}

# Debian starts what it installs, now and at every boot. Nobody asked for servers on ports 80 and 6379: a policy forbids
# the first, disabling them the second.
install_services() ( # packages
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "only root can install $* with apt." "Debian: sudo apt-get install $*"
    fi
    policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 1' INT TERM
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"; } >/dev/null ||
        fail "apt could not install $*."
    for service in "$@"; do
        systemctl disable --quiet "$service" 2>/dev/null || :
    done
)
