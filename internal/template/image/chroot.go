package image

import (
	"context"
	"os"
	"slices"
	"strings"
)

// isolate are the arguments of unshare that give a command namespaces of its
// own: its mounts are invisible elsewhere and end with it, and so do its
// children.
var isolate = []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}

// enter runs inside the namespaces: it gives the tree at $1 what programs
// expect of a system, then runs the script $2 in it. The devices are a few of
// the host's that have no memory; names resolve as on the host.
const enter = `
cd "$1"
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t tmpfs -o mode=0755 tmpfs dev
for n in null zero full random urandom tty; do : > dev/$n; mount --bind /dev/$n dev/$n; done
ln -s /proc/self/fd dev/fd
mkdir -m 1777 dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
for f in etc/resolv.conf etc/hosts; do [ ! -e /$f ] || [ ! -e $f ] || mount --bind /$f $f; done
exec chroot . /bin/sh -e -c "$2"
`

// passed are the host's variables that a step may need to reach the network.
var passed = []string{
	"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
	"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT",
}

// inTree runs a script as root inside a tree.
func inTree(ctx context.Context, tree, script string, onLine func(string)) error {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "DEBIAN_FRONTEND=noninteractive",
	}
	for k, v := range Env() {
		env = append(env, k+"="+v)
	}
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok && !strings.ContainsRune(v, 0) {
			env = append(env, name+"="+v)
		}
	}
	args := append(slices.Clone(isolate), "--", "/bin/sh", "-e", "-c", enter, "enter", tree, script)
	return run(ctx, onLine, "/", env, "unshare", args...)
}
