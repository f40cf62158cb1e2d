package image

import (
	_ "embed"
	"strings"
)

//go:embed docker-keeper.py
var keeper []byte

const keeperPath = "/usr/lib/cay/docker-keeper"

// Docker is Base with Docker, as Debian has it: its daemon runs when the snapshot is
// taken. It wants the flag docker of a template.
func Docker() Recipe {
	base := Base()
	return Recipe{
		Name:     "docker",
		From:     &base,
		Packages: strings.Fields(`docker.io docker-compose iptables busybox-static`),
		Files: []File{
			{Path: "/etc/docker/daemon.json", Mode: 0o644, Data: []byte(dockerSettings)},
			{Path: "/etc/systemd/system/docker.service", Mode: 0o644, Data: []byte(dockerUnit)},
			{Path: "/etc/systemd/system/docker-keeper.service", Mode: 0o644, Data: []byte(keeperUnit)},
			{Path: "/usr/local/bin/docker", Mode: 0o755, Data: []byte(dockerCommand)},
			{Path: keeperPath, Mode: 0o755, Data: keeper},
		},
		Steps: []Step{
			{Name: "set Docker up", Script: dockerServices},
			{Name: "tidy up", Script: tidy},
		},
	}
}

// The bridge is made anew a moment after a sandbox has started: a first command
// waits for it.
const dockerCommand = `#!/bin/sh
n=0
until case $(cat /proc/net/dev) in *docker0:*) ;; *) [ $n -ge 100 ] ;; esac; do
	n=$((n + 1))
	sleep 0.05
done
exec /usr/bin/docker "$@"
`

// Docker's own rules of the packet filter want matches that gVisor has not: the
// keeper translates addresses in their place.
const dockerSettings = `{
  "iptables": false,
  "ip6tables": false,
  "storage-driver": "overlay2",
  "features": {"buildkit": true},
  "log-opts": {"max-size": "10m", "max-file": "2"}
}
`

// The package's unit wants its socket from systemd, and containerd as a service of
// its own; the daemon makes the one and starts the other by itself. A sandbox that
// was booted from files has the notes of processes that are gone.
const dockerUnit = `[Unit]
Description=Docker

[Service]
Type=notify
ExecStartPre=/bin/sh -c 'rm -f /run/docker.pid; pgrep -x containerd >/dev/null || rm -rf /run/docker'
ExecStart=/usr/sbin/dockerd
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
KillMode=process

[Install]
WantedBy=multi-user.target
`

const keeperUnit = `[Unit]
Description=Networks and memory limits of Docker's containers
After=docker.service
Wants=docker.service

[Service]
Type=notify
ExecStart=` + keeperPath + `
Restart=on-failure

[Install]
WantedBy=multi-user.target
`

const dockerServices = `
cd /etc/systemd/system
rm -rf sockets.target.wants/docker.socket multi-user.target.wants/containerd.service multi-user.target.wants/docker.service
ln -sf /dev/null docker.socket
ln -sf /dev/null containerd.service
mkdir -p multi-user.target.wants
ln -s ../docker.service ../docker-keeper.service multi-user.target.wants
update-alternatives --quiet --set iptables /usr/sbin/iptables-legacy
update-alternatives --quiet --set ip6tables /usr/sbin/ip6tables-legacy
usermod --append --groups docker user
mkdir -p /var/lib/docker
`
