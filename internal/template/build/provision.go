package build

import "github.com/cay-run/cay/internal/guest"

// provision makes a sandbox's system of an image: bash and sudo, a user that
// may use it, the host's authorities. $1 is the family. Packages come from the
// image's own sources; where those cannot be reached, what can be done without
// them is. It is part of the key of every image.
const provision = `
family=$1
have() { command -v "$1" >/dev/null 2>&1; }

lack=
have bash || lack="$lack bash"
have sudo || lack="$lack sudo"
install() {
	case $family in
	debian) export DEBIAN_FRONTEND=noninteractive
		apt-get update -q && apt-get install -q -y --no-install-recommends $lack && rm -rf /var/lib/apt/lists/* ;;
	alpine) apk add --no-cache $lack ;;
	fedora) if have dnf; then dnf install -q -y $lack; elif have microdnf; then microdnf install -y $lack; else yum install -q -y $lack; fi ;;
	arch) pacman -Sy --noconfirm --needed $lack ;;
	esac
}
if [ -n "$lack" ]; then
	install || echo "not installed, because the image's package sources do not answer:$lack" >&2
fi
have bash || { printf '#!/bin/sh\nexec /bin/sh "$@"\n' >/bin/bash && chmod 755 /bin/bash; }

if ! id -u user >/dev/null 2>&1; then
	useradd --create-home --uid 1000 --user-group --shell /bin/bash user 2>/dev/null ||
		useradd --create-home --user-group --shell /bin/bash user 2>/dev/null ||
		adduser -D -u 1000 -s /bin/bash user 2>/dev/null ||
		adduser -D -s /bin/bash user 2>/dev/null || {
		n=1000
		while grep -q "^[^:]*:[^:]*:$n:" /etc/passwd /etc/group; do n=$((n + 1)); done
		echo "user:x:$n:" >>/etc/group
		echo "user:x:$n:$n::/home/user:/bin/bash" >>/etc/passwd
	} || exit 1
fi
mkdir -p /home/user /code /usr/local/bin /run/e2b || exit 1
chown user /home/user /code
find /usr/local -type d -exec chmod a+rwx {} +
chmod 1777 /tmp /var/tmp

# Services by the agent (ADR 75). Packages that bring systemd leave its commands
# under other names.
if have dpkg-divert; then
	for name in bin/systemctl bin/journalctl sbin/init; do
		dpkg-divert --quiet --local --rename --divert /$name.systemd --add /$name &&
			dpkg-divert --quiet --local --rename --divert /usr/$name.systemd --add /usr/$name &&
			ln -sf ` + guest.AgentPath + ` /usr/$name || exit 1
	done
fi

bundle=/etc/ssl/certs/ca-certificates.crt
cp $bundle /tmp/.cay-bundle
if have update-ca-certificates; then update-ca-certificates >/dev/null 2>&1
elif have update-ca-trust; then
	cp /usr/local/share/ca-certificates/*.crt /etc/pki/ca-trust/source/anchors/ 2>/dev/null
	update-ca-trust 2>/dev/null
elif have trust; then
	for crt in /usr/local/share/ca-certificates/*.crt; do
		[ ! -e "$crt" ] || trust anchor --store "$crt" 2>/dev/null
	done
fi
rm -f $bundle
mv /tmp/.cay-bundle $bundle && chmod 644 $bundle
`
