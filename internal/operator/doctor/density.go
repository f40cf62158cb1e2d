package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/node"
)

// neighbours looks at the kernel's one table of hardware addresses, in which
// every running sandbox has an entry, whatever namespace it is in.
func neighbours(_ context.Context, h host) Check {
	const good = 4096
	most, found := h.number("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
	if found && most < good {
		return warn(fmt.Sprintf("net.ipv4.neigh.default.gc_thresh3=%d is room for some %d sandboxes", most, most*9/10),
			fmt.Sprintf("sysctl -w net.ipv4.neigh.default.gc_thresh3=%d", 4*good))
	}
	return ok("room for more than 3500 sandboxes")
}

// pool says what waits to be claimed, which the journals of a node tell with
// no server there to ask.
func pool(_ context.Context, h host) Check {
	var total int64
	text, _ := h.read("/proc/meminfo")
	if _, err := fmt.Sscanf(text, "MemTotal: %d kB", &total); err != nil {
		return warn("the memory of this machine cannot be read", "set CAY_POOL_MEMORY in megabytes")
	}
	most, err := h.cfg.PoolBytes(total << 10)
	if err != nil || most == 0 {
		return ok("off: every sandbox is made when it is asked for (CAY_POOL_MEMORY)")
	}
	ready, _ := filepath.Glob(filepath.Join(h.cfg.Data, "instances", "*", "pooled"))
	detail := fmt.Sprintf("%d warm sandboxes wait, in up to %s", len(ready), gib(uint64(most)))
	if _, err := os.Stat(filepath.Join(h.cfg.Data, "instances")); err != nil {
		detail = fmt.Sprintf("warm sandboxes may wait in up to %s", gib(uint64(most)))
	}
	return ok(detail)
}

// loading says when sandboxes get their memory; what those that run may still
// load, only a server knows.
func loading(_ context.Context, h host) Check {
	if h.cfg.MemoryLoading == config.LoadEager {
		return ok("eager: a sandbox has all of its memory when it starts (CAY_MEMORY_LOADING)")
	}
	percent, err := h.cfg.LoadPercent()
	if err != nil {
		return warn(err.Error(), "set CAY_LOAD_RESERVE to a percentage")
	}
	shared := map[string]string{
		config.ShareAll: "what is only read is shared by all of a template", config.ShareTeam: "what is only read is shared within the team of a template",
		config.ShareOff: "nothing is shared",
	}[h.cfg.MemorySharing]
	starts := map[string]string{
		config.LoadAuto: "auto: eager in resumes, rollbacks and forks, else by demand", config.LoadDemand: "by demand",
	}[h.cfg.MemoryLoading]
	return ok(fmt.Sprintf("%s, with %d%% of what may still be loaded kept free; %s", starts, percent, shared))
}

// loaded adds to a check of the loading what a server says of it.
func loaded(c Check, l node.Loading) Check {
	if l.Instances > 0 {
		c.Detail += fmt.Sprintf("; %d sandboxes may still load %s", l.Instances, gib(uint64(l.Pending)))
	}
	if l.Removed > 0 {
		c.Detail += fmt.Sprintf("; %d removed snapshots take %s until their sandboxes have ended", l.Removed, gib(uint64(l.Kept)))
	}
	return c
}

// packageCache says how much room the packages have that sandboxes install.
func packageCache(_ context.Context, h host) Check {
	limit, err := h.cfg.PackageBytes()
	if err != nil || limit == 0 {
		return ok("off: every sandbox fetches its packages itself (CAY_PACKAGE_CACHE)")
	}
	dir := existing(h.cfg.Data)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return warn(fmt.Sprintf("the free space of %s cannot be read: %v", dir, err), "see that there is room for "+gib(uint64(limit)))
	}
	var held int64
	files, _ := filepath.Glob(filepath.Join(h.cfg.Data, "packages", "*"))
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			held += info.Size()
		}
	}
	detail := fmt.Sprintf("%d packages and pages, %s of up to %s", len(files), gib(uint64(held)), gib(uint64(limit)))
	if free := int64(st.Bavail) * st.Bsize; limit-held > free {
		return warn(detail+", for which there is no room", "set CAY_PACKAGE_CACHE to less, or free some disk")
	}
	return ok(detail)
}
