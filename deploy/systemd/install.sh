#!/bin/sh
# Installs trainvitals into /opt/trainvitals and starts its agent as a service of this machine.
#   TRAINVITALS_PACKAGE=./trainvitals-0.1.0-py3-none-any.whl sh install.sh [--no-service]
# TRAINVITALS_PACKAGE is what to install: a wheel or sdist, its URL, or a name in your package index such as
# trainvitals==0.1.0 (PIP_INDEX_URL says which index). Where no Python is 3.11 or newer, uv brings one.
# Running it again upgrades; the token and the settings of the service are kept.
set -eu

PREFIX=/opt/trainvitals
NEWEST="python3 python3.14 python3.13 python3.12 python3.11"

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

find_python() {
  for name in $NEWEST; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
}

# Debian and Ubuntu have `venv` in a package of its own.
need_venv() {
  if ! "$1" -c 'import ensurepip, venv' 2>/dev/null; then
    command -v apt-get >/dev/null || fail "$1 has no venv module: install it"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1-venv" >/dev/null
  fi
}

find_uv() {
  if command -v uv; then
    return
  fi
  need_venv python3
  python3 -m venv "$PREFIX-uv"
  "$PREFIX-uv/bin/pip" install --quiet --upgrade pip uv >&2
  echo "$PREFIX-uv/bin/uv"
}

service=yes
case "${1:-}" in
  "") ;;
  --no-service) service=no ;;
  *) fail "unknown option $1" ;;
esac
[ "$(id -u)" = 0 ] || fail "run it as root"
[ -n "${TRAINVITALS_PACKAGE:-}" ] || fail "set TRAINVITALS_PACKAGE to a wheel, an sdist, a URL or a name in your package index"
package=$TRAINVITALS_PACKAGE
if [ -f "$package" ]; then
  package=$(readlink -f "$package")
fi

if [ ! -x "$PREFIX/bin/pip" ]; then
  python=$(find_python)
  if [ -n "$python" ]; then
    need_venv "$python"
    "$python" -m venv "$PREFIX"
  else
    echo "install.sh: no Python 3.11 or newer here, uv brings one" >&2
    uv=$(find_uv)
    # Beside the environment, not in root's home, which the service cannot see.
    UV_PYTHON_INSTALL_DIR="$PREFIX-python" "$uv" venv --quiet --seed --python 3.12 "$PREFIX"
  fi
fi
# Both words are one package: the second only adds its extras.
"$PREFIX/bin/pip" install --quiet --upgrade "$package" 'trainvitals[all]'
ln -sf "$PREFIX/bin/trainvitals" /usr/local/bin/trainvitals
[ "$service" = yes ] || exit 0

version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
[ "$version" -ge 247 ] || fail "systemd $version has no LoadCredential: 247 is needed for the service"
files=$("$PREFIX/bin/python" -P -c 'from trainvitals.views.deployment.files import find_deploy; print(find_deploy())')
install -d -m 0700 /etc/trainvitals
if [ ! -s /etc/trainvitals/token ]; then
  (umask 077 && "$PREFIX/bin/python" -c 'import secrets; print(secrets.token_hex(32))' >/etc/trainvitals/token)
fi
install -m 0644 "$files/systemd/trainvitals-agent.service" /etc/systemd/system/
systemctl enable --quiet trainvitals-agent
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl restart trainvitals-agent
  echo "trainvitals serves metrics on port 9101; Prometheus needs the token in /etc/trainvitals/token"
else
  echo "trainvitals is installed; its service starts with the machine"
fi
