package server

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/node"
)

// poolMemory is what the pool may take of this machine's memory, in bytes.
func poolMemory(cfg config.Config) (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, cay.Wrap(cay.Internal, err, "this machine's memory cannot be read")
	}
	return cfg.PoolBytes(int64(info.Totalram) * int64(info.Unit))
}

// writePool writes the metrics of the pool.
func writePool(w io.Writer, p node.PoolStats) {
	gauge := func(name, help string) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	}
	perTemplate := func(name string, counts map[cay.TemplateID]int) {
		for _, t := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(w, "%s{template=%q} %d\n", name, t, counts[t])
		}
	}
	gauge("cay_pool_ready", "Sandboxes that wait to be claimed.")
	perTemplate("cay_pool_ready", p.Ready)
	gauge("cay_pool_wanted", "Sandboxes that should wait to be claimed, by demand and memory.")
	perTemplate("cay_pool_wanted", p.Wanted)
	gauge("cay_pool_memory_bytes", "Memory of the sandboxes that wait.")
	fmt.Fprintf(w, "cay_pool_memory_bytes %d\n", p.Memory)
	gauge("cay_pool_memory_limit_bytes", "Memory that they may have.")
	fmt.Fprintf(w, "cay_pool_memory_limit_bytes %d\n", p.Budget)
	gauge("cay_pool_short", "1 while the machine has no memory or tasks to spare for a pool.")
	short := 0
	if p.Short {
		short = 1
	}
	fmt.Fprintf(w, "cay_pool_short %d\n", short)
	const creates = "cay_creates_total"
	fmt.Fprintf(w, "# HELP %s Sandboxes made of templates.\n# TYPE %s counter\n", creates, creates)
	fmt.Fprintf(w, "%s{start=\"warm\"} %d\n%s{start=\"cold\"} %d\n", creates, p.Warm, creates, p.Cold)
}
