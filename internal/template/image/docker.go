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
			{Path: "/etc/docker/containerd.toml", Mode: 0o644, Data: []byte(containerdSettings)},
			{Path: "/etc/systemd/system/containerd.service", Mode: 0o644, Data: []byte(containerdUnit)},
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

// Its notes of containers lie beside Docker's, so that each state of a sandbox has
// both. Kubernetes' interface is left out.
const containerdSettings = `version = 2
root = "/var/lib/docker/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
`

// A service of its own, because dockerd ends a containerd that it started itself and
// that does not answer within seconds, as on a busy machine after a restore. A sandbox
// that was booted from files has the notes of processes that are gone: no container
// runs without a shim.
const containerdUnit = `[Unit]
Description=The runtime of Docker's containers

[Service]
Type=notify
ExecStartPre=/bin/sh -c 'pgrep -x containerd-shim >/dev/null || rm -rf /run/containerd'
ExecStart=/usr/bin/containerd --config /etc/docker/containerd.toml
Restart=always
RestartSec=1
KillMode=process

[Install]
WantedBy=multi-user.target
`

// The package's unit wants its socket from systemd; the daemon makes it by itself.
const dockerUnit = `[Unit]
Description=Docker
After=containerd.service
Wants=containerd.service

[Service]
Type=notify
ExecStartPre=/bin/sh -c 'rm -f /run/docker.pid; pgrep -x containerd-shim >/dev/null || rm -rf /run/docker'
ExecStart=/usr/sbin/dockerd --containerd /run/containerd/containerd.sock
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
rm -rf sockets.target.wants/docker.socket
ln -sf /dev/null docker.socket
mkdir -p multi-user.target.wants
ln -sf ../containerd.service ../docker.service ../docker-keeper.service multi-user.target.wants
update-alternatives --quiet --set iptables /usr/sbin/iptables-legacy
update-alternatives --quiet --set ip6tables /usr/sbin/ip6tables-legacy
usermod --append --groups docker user
mkdir -p /var/lib/docker
`
