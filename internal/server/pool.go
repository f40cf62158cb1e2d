package server

import (
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
)

// poolMemory is what the pool may take of this machine's memory, in bytes.
func poolMemory(cfg config.Config) (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, cay.Wrap(cay.Internal, err, "this machine's memory cannot be read")
	}
	return cfg.PoolBytes(int64(info.Totalram) * int64(info.Unit))
}
